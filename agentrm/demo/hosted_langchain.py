"""Agents of LangChain on the hosted model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agentrm import ResourceManager
from agentrm.demo.scenario import HOSTED, Scenario
from agentrm.simulation.provider import AGENT_HEADER
from agentrm_langchain import AgentRMMiddleware

__all__ = ["agent"]


def agent(
    scenario: Scenario,
    base_url: str,
    rm: ResourceManager | None,
    name: str,
    tools: list[Callable[..., Any]],
    **who: Any,
) -> Any:
    """See `agentrm.demo.agents.Hosted`."""
    model = ChatOpenAI(
        model=HOSTED, base_url=base_url, api_key=SecretStr("not-needed"), max_retries=0,
        timeout=scenario.client_timeout_s, stream_chunk_timeout=scenario.client_timeout_s,
        streaming=True, stream_usage=True, default_headers={AGENT_HEADER: name},
    )  # fmt: skip
    retries: Any = ModelRetryMiddleware(max_retries=scenario.retries, on_failure="error")
    ours = [] if rm is None else [AgentRMMiddleware(rm, agent=name, **who)]
    made: Any = create_agent(model, tools, name=name, middleware=[retries, *ours])

    async def run(text: str) -> str:
        return str((await made.ainvoke({"messages": [HumanMessage(text)]}))["messages"][-1].text)

    return run
