"""A plugin whose reading of results fails gets its own error back, and the lane is free."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agentrm.adapters import CallSpec, ToolUse, Usage, acall, acall_blocking, astream, astream_blocking, call, stream
from agentrm.adapters.conformance.harness import manager, run_async
from agentrm.adapters.conformance.provider import Provider

SPEC = CallSpec(model="m", usage=lambda _: None, size=lambda _: 1, input_tokens=1)


async def _read(chunks: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in chunks]


WAYS: dict[str, Callable[[Any, CallSpec, Provider], Any]] = {
    "call": lambda rm, spec, provider: call(rm, spec, provider.call),
    "acall": lambda rm, spec, provider: run_async(lambda: acall(rm, spec, provider.acall)),
    "acall_blocking": lambda rm, spec, provider: run_async(lambda: acall_blocking(rm, spec, provider.call)),
    "stream": lambda rm, spec, provider: list(stream(rm, spec, provider.stream)),
    "astream": lambda rm, spec, provider: run_async(lambda: _read(astream(rm, spec, provider.astream))),
    "astream_blocking": lambda rm, spec, provider: run_async(
        lambda: _read(astream_blocking(rm, spec, provider.stream))
    ),
}


@pytest.mark.parametrize("reader", ["headers", "usage", "size"])
@pytest.mark.parametrize("way", WAYS)
def test_a_reader_that_fails_costs_no_lane(way: str, reader: str) -> None:
    fault = LookupError("no such field")

    def fails(_: Any) -> Any:
        raise fault

    rm, provider = manager(1), Provider()
    with pytest.raises(LookupError) as caught:
        WAYS[way](rm, SPEC._replace(**{reader: fails}), provider)
    assert caught.value is fault
    statistics = rm.statistics()
    assert (statistics.running, statistics.pools["default"].zombies) == (0, 0)
    provider.wait_closed()
    WAYS[way](rm, SPEC, provider)
    assert provider.calls == 2, "it was tried again, or the lane was lost"


@pytest.mark.parametrize("reader", ["arguments", "said", "noted"])
@pytest.mark.parametrize("way", ["call", "acall", "acall_blocking"])
def test_what_guards_cannot_read_costs_no_result_of_a_tool(
    way: str, reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("no such field")

    rm, provider = manager(1), Provider()
    use = dataclasses.replace(ToolUse(lambda: "asked", lambda _: "said"), **{reader: fails})
    spec = CallSpec(kind="tool", tool="work", use=use)
    with rm.guard(repeat=2):
        for _ in range(2):
            assert WAYS[way](rm, spec, provider).text
    assert "can't be watched" in caplog.text
    assert rm.statistics().running == 0


@pytest.mark.parametrize("way", ["acall", "acall_blocking", "astream", "astream_blocking"])
def test_a_heartbeat_that_fails_at_the_grant_costs_no_lane(way: str) -> None:
    rm, provider, beats = manager(1), Provider(), []

    def beat() -> None:
        beats.append(rm.statistics().running)
        if beats[-1]:
            raise LookupError("the run is over")

    with pytest.raises(LookupError):
        WAYS[way](rm, SPEC._replace(heartbeat=beat), provider)
    assert rm.statistics().running == 0
    assert provider.calls == 0


@pytest.mark.parametrize("way", ["stream", "astream", "astream_blocking"])
def test_a_use_that_cannot_be_booked_costs_a_broken_stream_no_lane(way: str) -> None:
    class Broken(Provider):
        def stream(self) -> Iterator[Any]:
            yield "one"
            raise ConnectionError("reset by peer")

        async def astream(self) -> AsyncIterator[Any]:
            yield "one"
            raise ConnectionError("reset by peer")

    rm = manager(1)
    with pytest.raises(Exception, match=r"input_tokens|reset by peer"):
        WAYS[way](rm, SPEC._replace(usage=lambda _: Usage(1 << 62, 1)), Broken())
    assert rm.statistics().running == 0
