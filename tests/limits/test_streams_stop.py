"""Streams that outgrow a limit are closed there, whichever adapter function reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agentrm import ResourceManager
from agentrm.adapters import CallSpec, astream, astream_blocking, stream
from agentrm.limits.errors import OutputLimit


class Upstream:
    """Ten tokens a chunk, until it is closed."""

    def __init__(self, chunks: int = 1121, usage: bool = False) -> None:
        self.sent, self.closed, self.chunks, self.usage = 0, False, chunks, usage

    def __iter__(self) -> Iterator[Any]:
        try:
            while self.sent < self.chunks:
                self.sent += 1
                yield "x" * 40
            if self.usage:
                yield {"usage": {"prompt_tokens": 20, "completion_tokens": 10 * self.chunks}}
        finally:
            self.closed = True

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            for chunk in iter(self):
                yield chunk
        finally:
            self.closed = True


def read(how: str, rm: ResourceManager, spec: CallSpec, upstream: Upstream) -> list[Any]:
    if how == "stream":
        return list(stream(rm, spec, lambda: iter(upstream)))

    async def all_() -> list[Any]:
        if how == "astream":
            return [chunk async for chunk in astream(rm, spec, lambda: upstream)]
        return [chunk async for chunk in astream_blocking(rm, spec, lambda: iter(upstream))]

    return asyncio.run(all_())


WAYS = ["stream", "astream", "astream_blocking"]


def ten(chunk: Any) -> int:
    return 10 if isinstance(chunk, str) else 0


@pytest.mark.parametrize("how", WAYS)
def test_a_reply_is_closed_at_its_own_limit(how: str) -> None:
    with ResourceManager(budgets={"agent.a": {"tokens": 10_000}}) as rm:
        upstream = Upstream()
        spec = CallSpec(agent="a", input_tokens=20, max_output_tokens=100, size=ten)
        with pytest.raises(OutputLimit) as caught:
            read(how, rm, spec, upstream)
        assert upstream.closed and upstream.sent == 11
        assert caught.value.partial == ("x" * 40,) * 10
        statistics = rm.statistics()
        assert statistics.running == 0
        assert statistics.budgets["agent.a"].spent["tokens"] == 20 + 110


@pytest.mark.parametrize("how", WAYS)
def test_a_reply_is_closed_where_its_budget_ends(how: str) -> None:
    with ResourceManager(budgets={"agent.a": {"tokens": 120}}) as rm:
        upstream = Upstream()
        with pytest.raises(OutputLimit, match="agent.a") as caught:
            read(how, rm, CallSpec(agent="a", input_tokens=20), upstream)
        assert upstream.closed and upstream.sent == 11
        assert len(caught.value.partial) == 10
        assert rm.statistics().running == 0


@pytest.mark.parametrize("how", WAYS)
def test_a_guess_at_the_length_cuts_no_reply_that_the_provider_bounds(how: str) -> None:
    with ResourceManager() as rm:
        upstream = Upstream(chunks=12)
        assert len(read(how, rm, CallSpec(max_output_tokens=100), upstream)) == 12


@pytest.mark.parametrize("how", WAYS)
def test_a_whole_reply_is_not_lost_to_its_last_frame(how: str) -> None:
    with ResourceManager(budgets={"agent.a": {"tokens": 1000}}) as rm:
        upstream = Upstream(chunks=10, usage=True)
        assert len(read(how, rm, CallSpec(agent="a", max_output_tokens=100, size=ten), upstream)) == 11
        assert rm.statistics().budgets["agent.a"].spent["tokens"] == 120
