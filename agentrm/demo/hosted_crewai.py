"""Agents of CrewAI on the hosted model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from crewai import LLM, Agent
from crewai.tools import tool
from crewai_core.printer import set_suppress_console_output

from agentrm import ResourceManager
from agentrm.demo.scenario import HOSTED, Scenario
from agentrm.simulation.provider import AGENT_HEADER

__all__ = ["agent"]


def agent(
    scenario: Scenario,
    base_url: str,
    rm: ResourceManager | None,
    name: str,
    tools: list[Callable[..., Any]],
    **who: Any,
) -> Any:
    """See `agentrm.demo.agents.Hosted`. A fresh agent for each question: they keep what they were asked."""
    set_suppress_console_output(True)
    llm = LLM(
        model=f"openai/{HOSTED}", base_url=base_url, api_key="not-needed", max_retries=scenario.retries,
        timeout=scenario.client_timeout_s, default_headers={AGENT_HEADER: name}, stream=True,
    )  # fmt: skip
    loop = asyncio.get_running_loop()

    def blocking(fn: Callable[..., Any]) -> Any:
        """CrewAI runs tools on threads; what they ask runs on the demo's loop."""

        def call(text: str) -> str:
            return str(asyncio.run_coroutine_threadsafe(fn(text), loop).result())

        call.__name__, call.__doc__ = fn.__name__, fn.__doc__
        return tool(fn.__name__)(call)

    async def run(text: str) -> str:
        made: Any = Agent(role=name, goal="Help.", backstory="Helps.", llm=llm, tools=[blocking(fn) for fn in tools])
        if rm is not None:
            made = rm.attach(made, agent=name, **who)
        return str((await made.kickoff_async(text)).raw)

    return run
