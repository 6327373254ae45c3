"""The cache replay: LRU and Belady are what brute force says, and the figures come out as asked."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from agentrm.cli.main import main
from agentrm.simulation.kv_policies import LRU, POLICIES, Belady, replay
from agentrm.simulation.kv_trace import KVTrace
from agentrm.simulation.traces import Call, TracedProgram, TraceError, arrange, read_trace


def trace_of(requests: list[list[int]]) -> KVTrace:
    """Requests of single blocks, one program each, all blocks shared."""
    programs = [
        TracedProgram(f"p{i}", (Call(float(i), i + 0.5, len(blocks), 1, None, tuple((b, 1) for b in blocks)),), 1, True)
        for i, blocks in enumerate(requests)
    ]
    return KVTrace(programs)


def random_requests(rng: random.Random, blocks: int, requests: int, longest: int) -> list[list[int]]:
    return [rng.sample(range(blocks), rng.randint(1, longest)) for _ in range(requests)]


def brute_lru(requests: list[list[int]], capacity: int) -> int:
    cached: list[int] = []  # oldest first
    hits = 0
    for request in requests:
        hits += sum(b in cached for b in request)
        cached = [b for b in cached if b not in request] + request[::-1]
        cached = cached[max(0, len(cached) - capacity) :]
    return hits


def brute_best(requests: list[list[int]], capacity: int) -> int:
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for request in requests:
        found: dict[frozenset[int], int] = {}
        for state, hits in states.items():
            more = hits + len(state & set(request))
            pool = sorted(state | set(request))
            for kept in itertools.combinations(pool, min(capacity, len(pool))):
                key = frozenset(kept)
                found[key] = max(found.get(key, -1), more)
        states = found
    return max(states.values())


def test_lru_and_belady_agree_with_brute_force(rng: random.Random) -> None:
    for _ in range(60):
        requests = random_requests(rng, 7, rng.randint(2, 9), 4)
        capacity = rng.randint(1, 5)
        trace = trace_of(requests)
        assert replay(trace, LRU(trace, capacity)) == brute_lru(requests, capacity)
        assert replay(trace, Belady(trace, capacity)) == brute_best(requests, capacity)


def sessions(rng: random.Random, many: int) -> list[dict[str, object]]:
    """Coding sessions: half call again within seconds, half after minutes."""
    rows: list[dict[str, object]] = []
    for i in range(many):
        t, blocks, requests = 0.0, 40, list[dict[str, object]]()
        for _ in range(25):
            blocks += rng.randint(1, 10)
            tokens = blocks * 64
            requests.append({"t": t, "in": tokens, "out": 50, "api": 2.0, "stop": "tool_use", "h": [[1, blocks]]})
            t += 2.0 + (rng.uniform(1, 5) if i % 2 else rng.uniform(300, 900))
        rows.append({"id": f"s{i}", "block": 64, "requests": requests})
    return rows


def test_figures_of_a_trace(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("numpy")
    file, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in sessions(random.Random(seed), 40)))
    command = ["simulate", "kv", "--trace", str(file), "--format", "claude-code", "--json", str(out)]
    assert main([*command, "--capacity", "20%,60000", "--policy", ",".join(POLICIES)]) == 0
    rows = {(r["policy"], r["capacity"]): r for r in json.loads(out.read_text())["results"]}
    assert set(rows) == set(itertools.product(POLICIES, ("20%", "60000")))
    for capacity in ("20%", "60000"):
        assert rows["lru", capacity]["gap_closed"] == 0 and rows["belady", capacity]["gap_closed"] == 1
        best = rows["belady", capacity]["hit_tokens"]
        assert all(0 <= rows[p, capacity]["hit_tokens"] <= best for p in POLICIES)
    assert rows["agentrm", "20%"]["gap_closed"] > 0.2


def test_by_recency_the_learnt_cache_is_lru(rng: random.Random) -> None:
    pytest.importorskip("numpy")
    from agentrm.simulation.kv_learned import Learned

    for capacity in (7, 20):
        trace = trace_of(random_requests(rng, 40, 150, 6))
        cache = Learned(trace, capacity)
        cache.follow(by_recency=True)
        assert replay(trace, cache) == replay(trace, LRU(trace, capacity))


def test_a_learnt_order_that_is_worse_than_recency_is_not_followed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    from agentrm.simulation import kv_learned

    monkeypatch.setattr(kv_learned, "gittins", lambda shares: kv_learned.EDGES)  # who is away longest is worth most
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in sessions(random.Random(seed), 30)))
    trace = KVTrace(arrange(read_trace(file, "claude-code"), "claude-code", seed))
    kinds = (LRU, kv_learned.Learned, kv_learned.Guarded)
    recent, learned, guarded = (replay(trace, kind(trace, 600)) for kind in kinds)
    assert learned < 0.9 * recent
    assert guarded > 0.97 * recent


@pytest.mark.parametrize(
    "arguments",
    [["--capacity", "0%"], ["--capacity", "much"], ["--policy", "magic"], ["--sessions", "0"]],
)
def test_arguments_that_cannot_be_are_refused(tmp_path: Path, rng: random.Random, arguments: list[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps(sessions(rng, 1)[0]))
    assert main(["simulate", "kv", "--trace", str(file), "--format", "claude-code", *arguments]) != 0


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    for text in ("", "{", '{"id": 1}\n', "[]\n"):
        (tmp_path / "x").write_text(text)
        for form in ("claude-code", "glm-steps", "mooncake"):
            with pytest.raises(TraceError, match="x"):
                read_trace(tmp_path / "x", form)
