"""The adapter for OpenAI's clients, and the transports, under the suite that every adapter runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai

from agentrm import AgentRMError
from agentrm.adapters.conformance import Conformance, Provider, Refusal, Refuse
from agentrm_openai import gated_async_transport, gated_transport
from tests.plugins.openai.stub_http import StubTransport, httpx

ASKED: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": "hello"}]}


@contextmanager
def as_it_was() -> Iterator[None]:
    """What the client makes of a refusal, and of an error of the transport below it, turned back."""
    try:
        yield
    except openai.APIStatusError as error:
        raise Refusal(Refuse(error.status_code)) from error
    except openai.APIConnectionError as error:
        if isinstance(error.__cause__, AgentRMError):
            raise error.__cause__ from None
        raise


class _Model:
    def __init__(self, sync: Any, is_async: Any) -> None:
        self.sync, self.is_async = sync.chat.completions, is_async.chat.completions

    def call(self) -> str:
        with as_it_was():
            return self.sync.create(**ASKED).choices[0].message.content

    async def acall(self) -> str:
        with as_it_was():
            return (await self.is_async.create(**ASKED)).choices[0].message.content

    def stream(self) -> Iterator[str]:
        with as_it_was(), self.sync.create(**ASKED, stream=True) as stream:
            for chunk in stream:
                yield chunk.choices[0].delta.content

    async def astream(self) -> AsyncIterator[str]:
        with as_it_was():
            async with await self.is_async.create(**ASKED, stream=True) as stream:
                async for chunk in stream:
                    yield chunk.choices[0].delta.content


def clients(sync: Any, is_async: Any, retries: int = 2) -> tuple[Any, Any]:
    more = {"api_key": "any", "base_url": "http://stub/v1", "max_retries": retries}
    return (
        openai.OpenAI(http_client=httpx.Client(transport=sync), **more),
        openai.AsyncOpenAI(http_client=httpx.AsyncClient(transport=is_async), **more),
    )


class ClientHarness:
    def model(self, rm: Any, provider: Provider) -> Any:
        stub = StubTransport(provider)
        return _Model(*(rm.attach(client) for client in clients(stub, stub)))

    def layered(self, rm: Any, provider: Provider) -> Any:
        stub = StubTransport(provider)
        both = clients(gated_transport(rm, stub), gated_async_transport(rm, stub), retries=0)
        return _Model(*(rm.attach(rm.attach(client)) for client in both))

    def tool(self, rm: Any, fn: Callable[[], str]) -> Any:
        raise NotImplementedError("a client has no tools")

    def async_tool(self, rm: Any, fn: Callable[[], Awaitable[str]]) -> Any:
        raise NotImplementedError("a client has no tools")


class TransportHarness(ClientHarness):
    def model(self, rm: Any, provider: Provider) -> Any:
        stub = StubTransport(provider)
        return _Model(*clients(gated_transport(rm, stub), gated_async_transport(rm, stub), retries=0))


class TestClients(Conformance):
    harness = ClientHarness()


class TestTransports(Conformance):
    harness = TransportHarness()
