"""Generations in the hands of their callers: read them, pause them, go on, freeze them, leave them."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agentrm.models.engine.calls import Call
from agentrm.models.engine.loop import Loop
from agentrm.models.engine.seats import caller
from agentrm.models.engine.snapshot import Snapshot
from agentrm.models.engine.store import Chain
from agentrm.models.engine.works import Beam, BeamWork, TextWork
from agentrm.models.errors import GenerationCancelled
from agentrm.models.generation import Piece, TextStream
from agentrm.models.sequence import Sampler

if TYPE_CHECKING:
    from agentrm.models.tokenizer import Tokenizer

M = TypeVar("M")
Put = Callable[[Any], object]


class _Running(ABC, Generic[M]):
    """What is common to all: it starts when it is first read, and ends with whoever holds it."""

    def __init__(self, loop: Loop, call: Call, start: Callable[[Put], object], model: str) -> None:
        self._loop, self._call, self._start, self._model = loop, call, start, model
        self._came: queue.SimpleQueue[M | BaseException | None] = queue.SimpleQueue()
        self._started = self._ended = False
        self._starting = threading.Lock()

    def _begin(self) -> None:
        self._loop.thread.check()
        with self._starting:  # one thread reads it first, another one pauses it
            if not self._started and not self._ended:
                self._start(self._came.put)
                self._started = True

    def pause(self) -> bool:
        """Stops it at the token it is at; its lane goes to others, its KV may be swapped out. False: it has ended."""
        self._begin()
        return self._loop.ask(lambda: self._loop.pause(self._call, on=True))

    def resume(self) -> bool:
        """Lets it go on, ahead of what has not begun. False: it has ended."""
        return self._loop.ask(lambda: self._loop.pause(self._call, on=False))

    def snapshot(self, *, kv: bool = True) -> Snapshot | None:
        """What it takes to go on later or elsewhere from the token it is at (`LocalEngine.resume`), while it runs or
        pauses: with its KV, or as text alone. None if it has ended."""
        self._begin()
        return self._loop.ask(lambda: None if self._call.ended else self._freeze(kv))

    def close(self) -> None:
        """Leaves it: it stops at the token it is at, and its program is free. Again it does nothing."""
        self._leave(wait=True)

    def __del__(self) -> None:
        self._leave(wait=False)

    def _leave(self, *, wait: bool) -> None:
        if not self._started:  # the loop has never heard of it
            self._call.ended = True
            self._came.put(None)
        elif not self._ended and not self._loop.closed:
            self._loop.end(self._call, wait=wait)
        self._started = self._ended = True

    def _freeze(self, kv: bool) -> Snapshot:
        call, store = self._call, self._loop.store
        kind, prompt, settings, sampler = self._describe()
        saved = [store.read(chain) for chain in call.chains] if kv else []
        return Snapshot(
            self._model, kind, prompt, call.written, tuple(tuple(chain.tokens) for chain in call.chains), settings,
            sampler, tuple(one for one in saved if one is not None) if None not in saved else (),
        )  # fmt: skip

    @abstractmethod
    def _describe(self) -> tuple[str, int, dict[str, Any], Any]:
        """Kind, prompt tokens, settings and the sampler's state, as a snapshot keeps them."""


class Generation(_Running[Piece], Iterator[Piece]):
    """An answer as it comes. The last piece carries the usage. It is computed ahead of its reader, for as long as it
    has the turn."""

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        self._begin()
        if self._ended:
            raise StopIteration
        piece = self._loop.thread.wait(self._came)
        if isinstance(piece, Piece) and piece.usage is None:
            return piece
        self._ended = True
        self._came.put(None)  # another thread may wait for the next piece
        if piece is None:
            raise StopIteration
        if isinstance(piece, BaseException):
            raise piece
        return piece

    def _describe(self) -> tuple[str, int, dict[str, Any], Any]:
        work = self._call.work
        assert isinstance(work, TextWork)
        settings = {
            "limit": work.stream.limit, "stop": list(work.stream.stops), "temperature": work.sampler.temperature
        }  # fmt: skip
        return "text", work.prompt, settings, work.sampler.state


@dataclass(frozen=True, slots=True)
class Answer:
    """One result of a beam search; `score` as `LocalEngine.beam_search` defines it."""

    text: str
    score: float
    tokens: tuple[int, ...]


class BeamSearch(_Running[list[Beam]]):
    """A search for the likeliest answers. It runs when it is asked for its result, or paused, or frozen."""

    def __init__(
        self, loop: Loop, call: Call, start: Callable[[Put], object], model: str, tokenizer: Tokenizer
    ) -> None:
        super().__init__(loop, call, start, model)
        self._tokenizer = tokenizer
        self._result: list[Answer] | None = None

    def result(self) -> list[Answer]:
        """The best answers, best first. Waits for them. Raises GenerationCancelled."""
        self._begin()
        if self._result is None:
            found = self._loop.thread.wait(self._came)
            self._came.put(found)  # another thread may ask, or this one again
            self._ended = True
            if found is None:
                raise GenerationCancelled("the search was cancelled by its caller; nothing is left running")
            if isinstance(found, BaseException):
                raise found
            self._result = [Answer(self._tokenizer.decode(one.tokens), one.score, one.tokens) for one in found]
        return self._result

    def _describe(self) -> tuple[str, int, dict[str, Any], Any]:
        work = self._call.work
        assert isinstance(work, BeamWork)
        settings = {
            "width": work.width, "limit": work.limit, "penalty": work.penalty, "scores": work.scores,
            "ended": [[list(beam.tokens), beam.score] for beam in work.ended],
        }  # fmt: skip
        return "beams", work.prompt, settings, None


def revive(
    loop: Loop, tokenizer: Tokenizer, snapshot: Snapshot, cancelled: Callable[[], bool]
) -> Generation | BeamSearch:
    """A frozen generation, ready to go on in this loop."""
    settings = snapshot.settings
    chains = [Chain(tokens) for tokens in snapshot.tokens]
    call = Call(caller(), chains[0], settings["limit"], cancelled)

    def thaw() -> None:
        for i, chain in enumerate(chains):
            chain.tokens, chain.turn = list(snapshot.tokens[i]), snapshot.prompt
            if snapshot.kv:
                chain.fed = snapshot.kv[i].shape[2]
                chain.saved = loop.store.swap.hold(snapshot.kv[i])

    def text(put: Put) -> TextWork:
        thaw()
        sampler = Sampler(settings["temperature"], 0)
        if snapshot.sampler is not None:
            sampler.state = snapshot.sampler
        work = TextWork(chains[0], TextStream(tokenizer, settings["limit"], settings["stop"]), sampler, put)
        work.prompt = snapshot.prompt
        work.replay(snapshot.tokens[0][snapshot.prompt :])
        return work

    def beams(put: Put) -> BeamWork:
        thaw()
        work = BeamWork(chains[0], settings["width"], settings["limit"], settings["penalty"], tokenizer.end_ids, put)
        work.prompt, work.written = snapshot.prompt, snapshot.written
        work.chains, work.scores = chains, list(settings["scores"])
        work.ended = [Beam(tuple(tokens), score) for tokens, score in settings["ended"]]
        return work

    make: Callable[[Put], Any] = text if snapshot.kind == "text" else beams

    def start(put: Put) -> None:
        loop.begin(call, snapshot.tokens[0], lambda: make(put), put)

    if snapshot.kind == "text":
        return Generation(loop, call, start, snapshot.model)
    return BeamSearch(loop, call, start, snapshot.model, tokenizer)
