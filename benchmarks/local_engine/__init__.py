"""What the local engine gains: `python -m benchmarks.local_engine --json FILE [--device cuda] [--only ROW ...]`

Each row compares in one run, ours and the peer in turn, so that a busy machine slows both down. The ratios are the
figures to read: medians of the rounds, and their lowest and highest. Peers and ours compute in threads of their own,
one at a time unless the row is about many at once. `--device cuda` runs the same on a GPU (bfloat16 unless `--dtype`
says otherwise). With `--report FILE ...` nothing runs: results_local_engine.md, a part of RESULTS.md, is written from
the files of earlier runs, with the bars that they meet and miss. The status is 1 if a row that must hold does not
(`failed`), or a bar of the report is missed.

    turn-kv-kept           time to the first token of a turn of 64 new tokens, the KV kept (and: swapped to disk and
                           back, saving included), against computing the whole prompt again
    preempted-greedy       answers that differ between programs run together, with slices, too little memory, swapping
                           and snapshots (half of them with KV, half text alone), persons who come at every third
                           step, and each alone: 64 programs on the model, 64 and 250 on the small random one.
                           Below float32 they run one at a time, because only that is promised
    batch-8                time of a token while 8 programs write, against one at a time; equal and different lengths;
                           against transformers' own batched generate
    contention-16-agents   16 agents, one of them a person: throughput, and the person's 95th percentile, against each
                           agent calling generate on its own thread; against a semaphore; against transformers'
                           batched generate in arrival order
    memory                 the most KV that was ever in use, with half of what the programs need
"""
