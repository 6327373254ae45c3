"""A framework of a few lines and its adapter, as small as one can be; and adapters with one defect each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrm.adapters import CallSpec, Usage, acall, acall_blocking, astream, call, stream
from agentrm.adapters.conformance import Provider
from agentrm.context.compact import Compactor
from agentrm.context.messages import Message, make
from agentrm.context.sessions import Session, SessionStore

USAGE = CallSpec(
    model="toy",
    usage=lambda result: None if result.usage is None else Usage(*result.usage),
    size=lambda result: len(result.text) // 4,
    input_tokens=10,
)


@dataclass(frozen=True)
class Piece:
    text: str
    usage: tuple[int, int] | None


class ToyModel:
    """The framework's model, not gated."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def ask(self) -> Any:
        return self.provider.call()

    async def aask(self) -> Any:
        return await self.provider.acall()

    def pieces(self) -> Iterator[Piece]:
        return (Piece(*chunk) for chunk in self.provider.stream())

    async def apieces(self) -> AsyncIterator[Piece]:
        async for chunk in self.provider.astream():
            yield Piece(*chunk)


class GatedToy(ToyModel):
    """The adapter: each way of calling goes through the room's function for it."""

    def __init__(self, rm: Any, inner: ToyModel) -> None:
        super().__init__(inner.provider)
        self.rm, self.inner = rm, inner

    def ask(self) -> Any:
        return call(self.rm, USAGE, self.inner.ask)

    async def aask(self) -> Any:
        return await acall(self.rm, USAGE, self.inner.aask)

    def pieces(self) -> Iterator[Piece]:
        return stream(self.rm, USAGE, self.inner.pieces)

    def apieces(self) -> AsyncIterator[Piece]:
        return astream(self.rm, USAGE, self.inner.apieces)


class _Texts:
    """As the suite wants to see it."""

    def __init__(self, model: ToyModel) -> None:
        self.model = model

    def call(self) -> str:
        return self.model.ask().text

    async def acall(self) -> str:
        return (await self.model.aask()).text

    def stream(self) -> Iterator[str]:
        for piece in self.model.pieces():
            yield piece.text

    async def astream(self) -> AsyncIterator[str]:
        async for piece in self.model.apieces():
            yield piece.text


@dataclass
class _Tool:
    rm: Any
    sync: Callable[[], str] | None = None
    is_async: Callable[[], Awaitable[str]] | None = None
    spec: CallSpec = CallSpec(kind="tool", tool="toy")

    def run(self) -> str:
        assert self.sync is not None
        return call(self.rm, self.spec, self.sync)

    async def arun(self) -> str:
        if self.is_async is not None:
            return await acall(self.rm, self.spec, self.is_async)
        assert self.sync is not None
        return await acall_blocking(self.rm, self.spec, self.sync)


@dataclass
class _Talk:
    """What was said is kept in a session of agentrm's own."""

    model: _Texts
    session: Session

    async def say(self, text: str) -> str:
        self.session.append(make("user", text))
        answer = await self.model.acall()
        self.session.append(make("assistant", answer))
        return answer

    def texts(self) -> list[str]:
        return [message.text for message in self.session.messages()]

    async def hibernate(self) -> Path:
        return Path(self.session.hibernate())


class ToyHarness:
    gate: Any = GatedToy

    def conversation(self, rm: Any, provider: Provider, store: SessionStore) -> Any:
        return _Talk(self.model(rm, provider), store.open("talk"))

    def restored(self, rm: Any, provider: Provider, store: SessionStore, file: Path, name: str | None) -> Any:
        return _Talk(self.model(rm, provider), store.restore(file, as_session=name))

    def compacted(self, messages: Sequence[Message], max_tokens: int) -> Sequence[Message]:
        pytest.importorskip("numpy")
        return Compactor(embedder=None).compact(messages, max_tokens).messages

    def model(self, rm: Any, provider: Provider) -> Any:
        return _Texts(self.gate(rm, ToyModel(provider)))

    def layered(self, rm: Any, provider: Provider) -> Any:
        return _Texts(self.gate(rm, self.gate(rm, ToyModel(provider))))

    def tool(self, rm: Any, fn: Callable[[], str]) -> Any:
        return _Tool(rm, sync=fn)

    def async_tool(self, rm: Any, fn: Callable[[], Awaitable[str]]) -> Any:
        return _Tool(rm, is_async=fn)


# --- adapters with a defect, as seen in the wild ---


class NoGate(GatedToy):
    def __init__(self, rm: Any, inner: ToyModel) -> None:
        super().__init__(rm, inner)
        self.ask, self.aask = inner.ask, inner.aask  # type: ignore[method-assign]


class StreamUngated(GatedToy):
    """Holds its lane until the stream is open, not while it is read."""

    def pieces(self) -> Iterator[Piece]:
        return call(self.rm, USAGE._replace(usage=lambda _: None, size=lambda _: 1), self.inner.pieces)


class LeaksOnError(GatedToy):
    """Gives the lane back only when all went well."""

    def ask(self) -> Any:
        lease = self.rm.lease(model="toy").acquire()
        result = self.inner.ask()
        lease.release()
        return result


class ChargesNothing(GatedToy):
    """Takes a missing report of use for none."""

    def ask(self) -> Any:
        with self.rm.lease(model="toy") as lease:
            result = self.inner.ask()
            lease.refund()
            return result
