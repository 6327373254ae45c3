"""How long a failed call waits for its next attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import agentrm
from agentrm.adapters import CallSpec, acall, acall_blocking, astream, call, stream
from agentrm.adapters.conformance.harness import Threads, manager, run_async, until
from agentrm.adapters.conformance.provider import Provider, Refusal, Refuse

SPEC = CallSpec(model="m", usage=lambda _: None, size=lambda _: 1, input_tokens=1)


async def _read(chunks: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in chunks]


WAYS: dict[str, Callable[[Any, CallSpec, Provider], Any]] = {
    "call": lambda rm, spec, provider: call(rm, spec, provider.call),
    "acall": lambda rm, spec, provider: run_async(lambda: acall(rm, spec, provider.acall)),
    "acall_blocking": lambda rm, spec, provider: run_async(lambda: acall_blocking(rm, spec, provider.call)),
    "stream": lambda rm, spec, provider: list(stream(rm, spec, provider.stream)),
    "astream": lambda rm, spec, provider: run_async(lambda: _read(astream(rm, spec, provider.astream))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("asked", "wait_max", "max_s"),
    [(31, None, None), (86_400, None, None), (5, 4.0, None), (5, 4.0, 600.0), (5, None, 4.0), (None, 0, None)],
)
def test_a_pause_beyond_what_a_call_may_wait_makes_the_error_final(
    way: str, asked: float | None, wait_max: float | None, max_s: float | None
) -> None:
    rm = manager(clock=agentrm.VirtualClock(), waiting={} if max_s is None else {"max_s": max_s})
    provider = Provider(Refuse(502, retry_after=asked))
    (error,) = Threads(lambda: WAYS[way](rm, SPEC._replace(wait_max=wait_max), provider)).outcomes()
    assert isinstance(error, Refusal), "it slept on a clock that nobody moves"
    assert provider.calls == 1


@pytest.mark.parametrize(("asked", "wait_max", "max_s"), [(29, None, None), (90, 100.0, 10.0), (90, None, 100.0)])
def test_a_pause_within_it_is_waited_for(asked: float, wait_max: float | None, max_s: float | None) -> None:
    clock = agentrm.VirtualClock()
    rm = manager(clock=clock, waiting={} if max_s is None else {"max_s": max_s})
    provider = Provider(Refuse(502, retry_after=asked))
    caller = Threads(lambda: call(rm, SPEC._replace(wait_max=wait_max), provider.call).text)
    provider.wait_calls(2, lambda: clock.advance(5))
    assert caller.outcomes() == ["one two three"]


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_pauses_ends_when_the_manager_closes(way: str) -> None:
    rm, provider = manager(clock=agentrm.VirtualClock()), Provider(Refuse(502, retry_after=20))
    caller = Threads(lambda: WAYS[way](rm, SPEC, provider))
    until(rm, lambda s: s.pools["default"].failed == 1, "a failed attempt")
    rm.close()
    (error,) = caller.outcomes()
    assert isinstance(error, agentrm.ManagerClosed), "it slept on a clock that nobody moves"
    assert provider.calls == 1
    assert not rm.gate.pauses


@pytest.mark.parametrize("way", ["call", "acall", "stream"])
def test_whoever_waits_for_a_call_that_pauses_is_not_silent(way: str) -> None:
    """Between two attempts the call has no lease, so nothing else says that its caller waits for it."""
    clock = agentrm.VirtualClock()
    rm = manager(2, clock=clock, reaper={"sweep_s": 0.5, "idle_s": 1})
    provider = Provider(Refuse(502, retry_after=29), Refuse(502, retry_after=29))

    def outer() -> str:
        return str(call(rm, SPEC._replace(retries=False), lambda: WAYS[way](rm, SPEC._replace(key="inner"), provider)))

    caller = Threads(outer)
    provider.wait_calls(3, lambda: clock.advance(0.25))
    (answer,) = caller.outcomes()
    assert "three" in answer
    assert rm.statistics().running == 0
