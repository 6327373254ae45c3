"""What sessions cost: adding a message, hibernating and restoring 10,000, memory per message, compacting.

    python -m benchmarks.sessions

Times are CPU times of this process where nothing waits for a disk, so that a busy machine does not change them much.
"""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import TypeVar

from agentrm.context.compact import Compactor
from agentrm.context.embed import HashingEmbedder
from agentrm.context.messages import Message, Text, ToolCall, ToolResult, make
from agentrm.context.sessions import SessionStore
from agentrm.context.similarity import VectorCache
from agentrm.context.tokens import TokenCounter
from agentrm.storage import Fsync

COUNT = 10_000
TEXT = "lorem ipsum dolor sit amet " * 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """`unit` is ms or bytes; `detail` says what else was seen."""

    name: str
    value: float
    unit: str
    detail: str = ""

    def __str__(self) -> str:
        value = f"{self.value:.3f}" if self.value < 1 else f"{self.value:.0f}"
        return f"{self.name}: {value} {self.unit}" + (f" ({self.detail})" if self.detail else "")


def messages(count: int) -> Iterator[Message]:
    """User texts, answers, tool calls and their results in turn; 400 characters on average."""
    for number in range(count):
        if number % 4 == 1:
            parts = (Text("ok"), ToolCall(f"c{number}", "grep", '{"q": "x"}'))
            yield Message(f"m{number}", "assistant", parts)
        elif number % 4 == 2:
            yield Message(f"m{number}", "tool", (ToolResult(f"c{number - 1}", f"{TEXT}{number}"),))
        else:
            yield make("user" if number % 4 == 0 else "assistant", f"{TEXT}{number}", id=f"m{number}")


def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="agentrm-bench-"))


def appends(fsync: Fsync, count: int) -> Figure:
    """The median, by the clock on the wall."""
    taken = []
    with SessionStore(folder(), fsync=fsync) as store:
        session = store.open("s")
        for message in messages(count):
            start = perf_counter()
            session.append(message)
            taken.append(perf_counter() - start)
    taken.sort()
    middle, late = taken[count // 2] * 1e3, taken[count * 99 // 100] * 1e3
    detail = f"mean {statistics.mean(taken) * 1e3:.3f} ms, 99 % below {late:.3f} ms"
    return Figure(f"append, fsync {fsync}", middle, "ms", detail)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    gc.collect()
    start = process_time()
    done = work()
    return (process_time() - start) * 1e3, done


class Talk:
    """Text with the frequencies of a language (Zipf), ids and names of files among it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        syllables = [a + b for a in "bcdfghjklmnprstvw" for b in "aeiou"]
        self._words = ["".join(self._random.choices(syllables, k=1 + n % 4)) for n in range(8000)]
        self._often = [1 / (n + 5) for n in range(len(self._words))]

    def text(self, words: int) -> str:
        drawn = self._random.choices(self._words, self._often, k=words)
        sentences = [" ".join(drawn[at : at + 12]).capitalize() for at in range(0, words, 12)]
        if self._random.random() < 0.3:
            sentences.append(f"The {drawn[0]} number is {drawn[-1][:2].upper()}-{self._random.randrange(100_000)}-7")
        return ". ".join(sentences) + "."

    def history(self, tokens: int, tools: float, counter: TokenCounter) -> list[Message]:
        """Messages of so many tokens, of which about the share `tools` are calls with their results."""
        out: list[Message] = [make("system", "You are an agent.", id="system")]
        size = 0
        while size < tokens:
            number, path = len(out), f"/srv/{self._random.choice(self._words)}/{self._random.choice(self._words)}.py"
            if self._random.random() < tools:
                parts = (Text(self.text(15)), ToolCall(f"c{number}", "grep", f'{{"path": "{path}"}}'))
                found = f"{self.text(150)}\n{path}:{number}: error"
                new = [Message(f"m{number}", "assistant", parts)]
                new.append(Message(f"r{number}", "tool", (ToolResult(f"c{number}", found),)))
            else:
                role = "user" if number % 2 else "assistant"
                new = [make(role, self.text(self._random.randrange(5, 90)), id=f"m{number}")]
            out += new
            size += counter.messages(new)
        return [*out, make("user", "Go on.", id="last")]


def compactions(tokens: int) -> Iterator[Figure]:
    """From a history that was never counted nor searched before; only its embeddings are there."""
    cache = VectorCache(HashingEmbedder())
    for kind, tools in (("talk", 0.0), ("talk and tools", 0.5), ("tools", 1.0)):
        history = Talk(1).history(tokens, tools, TokenCounter())
        for name, vectors in (("without embeddings", None), ("with embeddings", cache)):
            Compactor(embedder=None, vectors=vectors).compact(history, tokens // 2)
            taken, result = [], None
            for _ in range(5):
                fresh = Compactor(embedder=None, vectors=vectors)
                cost, result = timed(partial(fresh.compact, history, tokens // 2))
                taken.append(cost)
            detail = f"{len(history):,} messages: {result}"
            yield Figure(f"compact {kind}, {name}", statistics.median(taken), "ms", detail)


def figures() -> Iterator[Figure]:
    """All of them, one after the other."""
    yield from compactions(200_000)
    appended: tuple[tuple[Fsync, int], ...] = (("never", COUNT), ("batch", COUNT), ("always", 500))
    for fsync, count in appended:
        yield appends(fsync, count)
    home = SessionStore(folder(), fsync="never")
    session = home.open("s")
    session.extend(messages(COUNT))
    cost, path = timed(session.hibernate)
    yield Figure("hibernate", cost, "ms", f"{COUNT:,} messages")
    restored, read = [], []
    for _ in range(5):
        with SessionStore(folder(), fsync="never") as store:
            cost, again = timed(lambda store=store: store.restore(Path(path)))  # type: ignore[misc]
            restored.append(cost)
            read.append(cost + timed(again.tier0)[0])
    yield Figure("restore", min(restored), "ms", f"{COUNT:,} messages")
    yield Figure("restore, all as objects", min(read), "ms", f"{COUNT:,} messages")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    session = home.restore("s")
    steps = [("opened", lambda: None), ("read as objects", session.tier0)]
    steps.append(("99 % paged out", lambda: session.set_view([f"m{n}" for n in range(COUNT - 100, COUNT)])))
    for name, step in steps:
        step()
        gc.collect()
        held = (tracemalloc.get_traced_memory()[0] - before) / COUNT
        yield Figure(f"memory per message, {name}", held, "bytes")
    tracemalloc.stop()


def main() -> None:
    for figure in figures():
        print(figure, flush=True)


if __name__ == "__main__":
    main()
