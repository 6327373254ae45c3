"""What happens behind the last chunk of a stream does not cost the answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import agentrm
from agentrm.adapters import CallSpec, astream, astream_blocking, stream
from agentrm.adapters.conformance.harness import Threads, manager, run_async, until
from agentrm.adapters.conformance.provider import PATIENCE_S, Provider

SPEC = CallSpec(model="m", usage=lambda _: None, size=lambda _: 1, input_tokens=1, is_last=lambda c: c[0] == "last")


class Tail(Provider):
    """Says all there is to say, then a frame of bookkeeping, then fails."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__()
        self.fault = fault

    def stream(self) -> Iterator[Any]:
        yield from (("first", None), ("last", None), ("bookkeeping", None))
        raise self.fault

    async def astream(self) -> AsyncIterator[Any]:
        for chunk in self.stream():
            yield chunk


def _read(chunks: AsyncIterator[Any]) -> list[str]:
    async def read() -> list[str]:
        return [text async for text, _ in chunks]

    return run_async(read)


WAYS: dict[str, Callable[[Any, Provider], list[str]]] = {
    "stream": lambda rm, provider: [text for text, _ in stream(rm, SPEC, provider.stream)],
    "astream": lambda rm, provider: _read(astream(rm, SPEC, provider.astream)),
    "astream_blocking": lambda rm, provider: _read(astream_blocking(rm, SPEC, provider.stream)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_after_the_last_chunk_is_logged_and_the_answer_is_whole(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    rm = manager(1)
    with caplog.at_level(logging.WARNING, "agentrm"):
        assert WAYS[way](rm, Tail(ConnectionError("reset by peer"))) == ["first", "last", "bookkeeping"]
    (record,) = caplog.records
    assert record.exc_info and "reset by peer" in str(record.exc_info[1])
    statistics = rm.statistics()
    assert (statistics.running, statistics.pools["default"].zombies) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_after_the_last_chunk_goes_through(way: str) -> None:
    class Interrupt(BaseException):
        pass

    rm = manager(1)
    with pytest.raises(Interrupt):
        WAYS[way](rm, Tail(Interrupt()))
    assert rm.statistics().running == 0


def test_a_stream_reaped_after_its_last_chunk_still_hands_it_out() -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, reaper={"idle_s": 30, "sweep_s": 1})
    silent, released = threading.Event(), threading.Event()

    def chunks() -> Iterator[Any]:
        yield from (("first", None), ("last", None))
        silent.set()
        assert released.wait(PATIENCE_S)

    reader = Threads(lambda: [text for text, _ in stream(rm, SPEC, chunks)])
    assert silent.wait(PATIENCE_S)
    clock.advance(32)
    assert reader.outcomes() == [["first", "last"]]
    released.set()
    until(rm, lambda s: s.pools["default"].zombies == 0, "the end of the zombie")
