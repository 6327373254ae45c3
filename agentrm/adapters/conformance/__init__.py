"""A pytest suite that any adapter runs against itself: does it hold what agentrm promises?

    from agentrm.adapters.conformance import Conformance

    class TestMyFramework(Conformance):
        harness = MyHarness()          # see `Harness`: a model, a tool, and the same gated twice

Each test says in its name what it demands. Nothing in it depends on speed: limits are reached on a virtual clock. A
feature that the framework does not have raises `NotImplementedError` in the harness and skips its tests.
`failures(harness)` runs the suite without pytest and returns what went wrong, by test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agentrm.adapters.conformance.conversations import Conversations
from agentrm.adapters.conformance.failures import Failures, Streams
from agentrm.adapters.conformance.harness import AsyncOnly, Conversation, Gated, GatedTool, Harness
from agentrm.adapters.conformance.lanes import Lanes
from agentrm.adapters.conformance.provider import Hang, Provider, Refusal, Refuse, Reply

__all__ = [
    "AsyncOnly",
    "Conformance",
    "Conversation",
    "Gated",
    "GatedTool",
    "Hang",
    "Harness",
    "Provider",
    "Refusal",
    "Refuse",
    "Reply",
    "failures",
    "tests",
]


class Conformance(Lanes, Streams, Failures, Conversations):
    """All of it; set `harness`."""


def tests() -> Iterator[str]:
    """The names of the tests."""
    return (name for name in dir(Conformance) if name.startswith("test_"))


def _skipping(test: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(test)
    def run(self: Any) -> None:
        try:
            test(self)
        except NotImplementedError as error:
            import pytest  # only where the suite runs

            pytest.skip(str(error) or "the framework does not have this")

    return run


for _name in tests():
    setattr(Conformance, _name, _skipping(getattr(Conformance, _name)))


def failures(harness: Harness, only: Iterable[str] | None = None) -> dict[str, Exception]:
    """What went wrong, by the name of the test; empty for an adapter that conforms. `only`: the tests to run."""
    suite = Conformance()
    suite.harness = harness
    found: dict[str, Exception] = {}
    for name in tests() if only is None else only:
        try:
            getattr(Conformance, name).__wrapped__(suite)
        except NotImplementedError:
            continue
        except Exception as error:  # noqa: BLE001 - it is the result
            found[name] = error
    return found
