"""What the context rooms keep, and what that costs: everything that results_context.md says, and its bars.

    python -m benchmarks.context --data DIR [--part NAME,...] [--json FILE] [--vectors FILE] [--report FILE]

DIR has the files of `DATA`. Each part keeps what it found in the JSON file. What is in there is not measured again,
unless its command has changed or `--part` asks for it: so the parts can be run one by one. With all of them there,
results_context.md is written, which is part of RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrm.cli.main import main as agentrm
from benchmarks import needles, sessions
from benchmarks.context_report import report
from benchmarks.report import machine

HERE = Path(__file__).parent
DATA = {
    "locomo": "locomo_dev5.json.gz",
    "mini-swe": "miniswe_trajectories.jsonl.gz",
    "tau-bench": "taubench_airline.jsonl.gz",
}
TALK = "agentrm,agentrm-no-faiss,keep-last,first-last,idf,memgpt,langchain-trim,bm25,bm25-neighbours,dense,belady"
RUNS = "agentrm,agentrm-no-faiss,keep-last,langchain-trim,idf,belady"
PAPER = "none,fifo,sliding,agentrm,agentrm-no-faiss"

Part = dict[str, Any]


class Parts:
    """What each part found, in `file` too."""

    def __init__(self, data: Path, file: Path, vectors: Path) -> None:
        self.data, self._file, self._vectors = data, file, vectors
        self.found: dict[str, Part] = json.loads(file.read_text()) if file.exists() else {}

    def commands(self) -> dict[str, list[str]]:
        """The command of each part, with the names of its files alone."""
        talk = ["--dataset", DATA["locomo"], "--format", "locomo"]
        evaluate = ["agentrm", "evaluate"]
        return {
            "locomo": [*evaluate, "context", *talk, "--budget", "0.1,0.25,0.5", "--method", TALK],
            "unseen": ["python", "-m", "agentrm.evaluation.train_reuse", "--dataset", DATA["locomo"]],
            "mini-swe": [
                *evaluate, "trajectories", "--dataset", DATA["mini-swe"], "--limit", "16000", "--method", RUNS,
            ],
            "tau-bench": [
                *evaluate, "trajectories", "--dataset", DATA["tau-bench"], "--limit", "0.5", "--method", RUNS,
            ],
            "synthetic": [*evaluate, "synthetic", "--seeds", "3", "--method", PAPER],
            "needles": [
                "python", "-m", "benchmarks.needles", "--locomo", DATA["locomo"], "--taubench", DATA["tau-bench"],
            ],
            "speed": ["python", "-m", "benchmarks.sessions"],
        }  # fmt: skip

    def missing(self) -> list[str]:
        """Parts that were never measured, or by another command."""
        return [n for n, command in self.commands().items() if self.found.get(n, {}).get("command") != command]

    def measure(self, name: str) -> None:
        command = self.commands()[name]
        own: dict[str, Callable[[], Part]] = {"unseen": self._unseen, "needles": self._needles, "speed": _speed}
        print(f"\n$ {' '.join(command)}", flush=True)
        part = own[name]() if name in own else self._evaluated(command[1:])
        self.found[name] = {"command": command, **part}
        self._file.write_text(json.dumps(self.found, indent=1) + "\n")

    def _evaluated(self, arguments: Sequence[str]) -> Part:
        placed = [str(self.data / a) if a in DATA.values() else a for a in arguments]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            if agentrm([*placed, "--vectors", str(self._vectors), "--json", str(file)]):
                raise SystemExit(f"agentrm {' '.join(arguments)} failed")
            return {"embedder": _embedder(), "results": json.loads(file.read_text())["results"]}

    def _unseen(self) -> Part:
        from agentrm.context.embed import choose_embedder
        from agentrm.context.similarity import VectorCache
        from agentrm.evaluation.datasets import read_conversations
        from agentrm.evaluation.train_reuse import Sample, unseen

        talks = read_conversations(self.data / DATA["locomo"], "locomo")
        cache = VectorCache(choose_embedder(), self._vectors)
        found = unseen([Sample(talk, cache) for talk in talks], cache.embedder.name)
        messages, questions = (sum(len(getattr(t, what)) for t in talks) for what in ("messages", "questions"))
        data = {"conversations": len(talks), "messages": messages, "questions": questions}
        return {"data": data, "results": found}

    def _needles(self) -> Part:
        return {"results": asdict(needles.kept(self.data / DATA["locomo"], self.data / DATA["tau-bench"]))}


def _embedder() -> str:
    from agentrm.context.embed import choose_embedder

    return choose_embedder().name


def _speed() -> Part:
    found = []
    for figure in sessions.figures():
        print(figure, flush=True)
        found.append(asdict(figure))
    return {"machine": machine(), "results": found}


def written(found: Mapping[str, Part], file: Path) -> str:
    """Writes the report; how many bars are met."""
    text, bars = report(found)
    file.write_text(text)
    return f"{sum(bar.met for bar in bars)} of {len(bars)} bars met; {file}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--part", default="", help="measure these anew and no others; names with commas between")
    parser.add_argument("--json", type=Path, default=HERE / "CONTEXT.json", help="figures of all parts")
    parser.add_argument("--vectors", type=Path, help="SQLite file that keeps embeddings between runs")
    parser.add_argument("--report", type=Path, default=HERE / "results_context.md")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(args.data, args.json, args.vectors or Path(folder) / "vectors.sqlite")
        wanted = [name for name in args.part.split(",") if name] or parts.missing()
        if unknown := set(wanted) - set(parts.commands()):
            parser.error(f"--part {', '.join(sorted(unknown))}: the parts are {', '.join(parts.commands())}")
        for name in wanted:
            parts.measure(name)
    if missing := parts.missing():
        print(f"\nNot measured yet: {', '.join(missing)}; {args.report} was left as it is")
    else:
        print(f"\n{written(parts.found, args.report)}")


if __name__ == "__main__":
    main()
