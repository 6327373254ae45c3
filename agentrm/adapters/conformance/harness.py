"""What an adapter's author writes to run the conformance suite, and what the suite watches the manager with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import agentrm
from agentrm.adapters.conformance.provider import PATIENCE_S, Provider

__all__ = [
    "AsyncOnly",
    "Conversation",
    "Gated",
    "GatedTool",
    "Harness",
    "Threads",
    "manager",
    "needs_threads",
    "run_async",
    "until",
]

T = TypeVar("T")


class Gated(Protocol):
    """A gated model of the framework, called the way the framework's users call it. Each returns the texts that came.

    A way of calling that the framework does not have raises `NotImplementedError`: the tests that need it are skipped.
    """

    def call(self) -> str: ...

    async def acall(self) -> str: ...

    def stream(self) -> Iterator[str]: ...

    def astream(self) -> AsyncIterator[str]: ...


class AsyncOnly:
    """Base of a `Gated` for a framework without sync calls: `acall` and `astream` run on a loop of their own, as users
    run them from sync code. Tests about threads that can't be stopped are skipped."""

    def acall(self) -> Awaitable[str]:
        raise NotImplementedError

    def astream(self) -> AsyncIterator[str]:
        raise NotImplementedError

    def call(self) -> str:
        return run_async(self.acall)

    def stream(self) -> Iterator[str]:
        loop, chunks = asyncio.new_event_loop(), self.astream()
        try:
            while True:
                try:
                    yield loop.run_until_complete(chunks.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            loop.run_until_complete(chunks.aclose())  # type: ignore[attr-defined]
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def needs_threads(gated: Gated) -> None:
    """Skips a test about sync calls, which run on threads, for a framework that has none."""
    if isinstance(gated, AsyncOnly):
        raise NotImplementedError("the framework has no sync calls")


class GatedTool(Protocol):
    """A gated tool."""

    def run(self) -> str: ...

    async def arun(self) -> str: ...


class Conversation(Protocol):
    """An agent of the framework that remembers what was said, gated by the adapter."""

    async def say(self, text: str) -> str:
        """One turn; the agent's answer."""
        ...

    def texts(self) -> list[str]:
        """What was said, by the person and the agent, in order, as the agent remembers it."""
        ...

    async def hibernate(self) -> Path:
        """The conversation in one file of its session store."""
        ...


class Harness(Protocol):
    """How the suite gets things that are gated by the adapter under test.

    An adapter with conversations and compaction of its own has more, else these tests are skipped:

    - `conversation(rm, provider, store) -> Conversation`, a new one whose session is kept in the `SessionStore`;
    - `restored(rm, provider, store, file, name) -> Conversation`, one that was hibernated, under a name of its own
      unless None;
    - `compacted(messages, max_tokens) -> Sequence[Message]`, what its compaction makes of neutral messages.
    """

    def model(self, rm: agentrm.ResourceManager, provider: Provider) -> Gated:
        """A model whose requests end in the provider, gated by the adapter."""
        ...

    def layered(self, rm: agentrm.ResourceManager, provider: Provider) -> Gated:
        """The same, gated in all the ways that users may combine: middleware over a gated model, attached twice."""
        ...

    def tool(self, rm: agentrm.ResourceManager, fn: Callable[[], str]) -> GatedTool:
        """A tool that runs the sync function, gated by the adapter."""
        ...

    def async_tool(self, rm: agentrm.ResourceManager, fn: Callable[[], Awaitable[str]]) -> GatedTool:
        """A tool that awaits the async function; its `run` need not work."""
        ...


def manager(lanes: int = 1, *, tools: int = 4, clock: Any = None, **sections: Any) -> agentrm.ResourceManager:
    """A manager with two pools, and idle and run limits far away unless they are set."""
    pools: dict[str, Any] = {"default": {"lanes": lanes}, "tools": {"lanes": tools}}
    for name, more in sections.pop("pools", {}).items():
        pools[name] = {**pools.get(name, {}), **more}
    return agentrm.ResourceManager(pools=pools, clock=clock, seed=7, **sections)


def until(rm: agentrm.ResourceManager, true: Callable[[Any], bool], what: str) -> None:
    """Waits for a state of the manager's statistics, woken by its events. AssertionError if it never comes."""
    changed = threading.Event()
    subscription = rm.subscribe(lambda _: changed.set())
    try:
        waited = 0.0
        while not true(rm.statistics()):
            if waited > PATIENCE_S:
                raise AssertionError(f"the manager never showed {what}: {rm.statistics()}")
            if not changed.wait(0.05):
                waited += 0.05
            changed.clear()
    finally:
        subscription.close()


class Threads:
    """Runs functions on threads and returns what came out of them."""

    def __init__(self, *fns: Callable[[], Any]) -> None:
        self._outcomes: list[Any] = [None] * len(fns)
        self._threads = [threading.Thread(target=self._run, args=(i, fn), daemon=True) for i, fn in enumerate(fns)]
        for thread in self._threads:
            thread.start()

    def _run(self, i: int, fn: Callable[[], Any]) -> None:
        try:
            self._outcomes[i] = fn()
        except BaseException as error:  # noqa: BLE001 - it is the outcome
            self._outcomes[i] = error

    def outcomes(self) -> list[Any]:
        """What each returned or raised; AssertionError if one does not end."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a call never came back to its caller"
        return self._outcomes


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Runs on a loop of its own; AssertionError if it does not end."""

    async def bounded() -> T:
        task = asyncio.ensure_future(main())
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_S * 2)
        assert done, "the loop never came to an end"
        return task.result()

    return asyncio.run(bounded())
