"""The stub provider is one to the real clients: answers, streams and tool calls arrive, refusals are understood."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from agentrm.limits.provider_errors import read_error
from agentrm.simulation.provider import Behaviour, StubProvider, ToolCall
from tests.simulation.asking import USER


def test_the_openai_client() -> None:
    openai = pytest.importorskip("openai")
    call = ToolCall("weather", {"city": "Oslo"})
    plan = [
        Behaviour(text="hello"),
        Behaviour(output_tokens=3),
        Behaviour(tool_calls=(call,)),
        Behaviour("rate", retry_after_s=7),
        Behaviour("quota"),
        Behaviour("stream_error", after=1),
        Behaviour("malformed"),
    ]
    tools = [
        {
            "type": "function",
            "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    with StubProvider(plan) as provider:
        client = openai.OpenAI(base_url=provider.base_url, api_key="any", max_retries=0)

        def ask(**more: Any) -> Any:
            return client.chat.completions.create(model="m", messages=[USER], **more)

        def failure(**more: Any) -> Any:
            with pytest.raises(Exception) as caught:
                reply = ask(**more)
                for _ in reply:
                    pass
                reply.choices  # noqa: B018
            return read_error(caught.value)

        assert ask().choices[0].message.content == "hello"
        chunks = list(ask(stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].usage.completion_tokens == 3
        assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) == 3
        called = ask(tools=tools).choices[0]
        assert (called.finish_reason, called.message.tool_calls[0].function.name) == ("tool_calls", "weather")
        assert called.message.tool_calls[0].function.arguments == '{"city": "Oslo"}'
        rate = failure()
        assert (rate.kind, rate.retry_after_s) == ("rate", 7.0)
        quota = failure()
        assert (quota.kind, quota.retryable) == ("quota", False)
        inside = failure(stream=True)
        assert (inside.kind, inside.status, inside.retryable) == ("rate", None, True)


def test_a_langchain_agent_loop_over_the_provider() -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    messages = pytest.importorskip("langchain_core.messages")
    tools = pytest.importorskip("langchain_core.tools")

    @tools.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    with StubProvider(
        Behaviour(text="it is 5", tool_calls=(ToolCall("add", {"a": 2, "b": 3}),)), strict_pairs=True
    ) as provider:
        model = langchain_openai.ChatOpenAI(
            model="m", base_url=provider.base_url, api_key="any", max_retries=0, stream_usage=True
        ).bind_tools([add])
        history: list[Any] = [messages.HumanMessage("what is 2 + 3?")]
        first = model.invoke(history)
        assert first.tool_calls[0]["args"] == {"a": 2, "b": 3}
        history += [first, add.invoke(first.tool_calls[0])]
        whole = None
        for chunk in model.stream(history):
            whole = chunk if whole is None else whole + chunk
        assert whole is not None
        assert whole.content == "it is 5"
        assert whole.usage_metadata["output_tokens"] == 3
        with pytest.raises(Exception) as caught:
            model.invoke(history[:2])
        error = read_error(caught.value)
        assert error is not None
        assert (error.kind, error.status) == ("bad_request", 400)


def test_langchain_raises_what_the_reader_understands() -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    plan = [
        Behaviour("rate", retry_after_s=3),
        Behaviour("quota"),
        Behaviour("auth"),
        Behaviour("overloaded"),
        Behaviour("drop"),
    ]
    with StubProvider(plan) as provider:
        model = langchain_openai.ChatOpenAI(
            model="m", base_url=provider.base_url, api_key="any", max_retries=0
        )
        kinds = []
        for _ in plan:
            with pytest.raises(Exception) as caught:
                model.invoke("hello")
            error = read_error(caught.value)
            assert error is not None
            kinds.append((error.kind, error.retry_after_s))
    assert kinds == [
        ("rate", 3.0),
        ("quota", None),
        ("auth", None),
        ("overloaded", None),
        ("connection", None),
    ]
