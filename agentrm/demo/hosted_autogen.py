"""Agents of AutoGen on the hosted model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from agentrm import ResourceManager
from agentrm.demo.scenario import HOSTED, Scenario
from agentrm.simulation.provider import AGENT_HEADER

__all__ = ["agent"]

INFO = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)


def agent(
    scenario: Scenario,
    base_url: str,
    rm: ResourceManager | None,
    name: str,
    tools: list[Callable[..., Any]],
    **who: Any,
) -> Any:
    """See `agentrm.demo.agents.Hosted`. A fresh agent for each question: they keep what they were asked."""
    client = OpenAIChatCompletionClient(
        model=HOSTED, base_url=base_url, api_key="not-needed", model_info=INFO, max_retries=scenario.retries,
        timeout=scenario.client_timeout_s, default_headers={AGENT_HEADER: name},
    )  # fmt: skip

    async def run(text: str) -> str:
        made: Any = AssistantAgent(
            name.replace("-", "_"), client, tools=[*tools], model_client_stream=True, max_tool_iterations=4
        )
        if rm is not None:
            made = rm.attach(made, agent=name, **who)
        return str((await made.run(task=text)).messages[-1].content)

    return run
