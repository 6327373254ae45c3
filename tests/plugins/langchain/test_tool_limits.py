"""Limits of tools bind the tools of an agent that has the middleware, and nothing else is to be written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from agentrm import ResourceManager
from agentrm_langchain import AgentRMMiddleware


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: object, **_: object) -> Model:
        return self


async def test_tools_of_one_turn_keep_their_limits_and_the_order_of_their_results() -> None:
    running: list[str] = []
    seen: list[tuple[str, ...]] = []

    async def work(name: str) -> str:
        running.append(name)
        seen.append(tuple(running))
        for _ in range(20):  # turns of the loop, in which others may begin
            await asyncio.sleep(0)
        running.remove(name)
        return name

    @tool
    async def browser(page: int) -> str:
        """Opens a page."""
        return f"{await work('browser')} {page}"

    @tool
    async def screenshot(page: int) -> str:
        """Takes a picture."""
        return f"{await work('screenshot')} {page}"

    @tool
    async def grep(page: int) -> str:
        """Searches."""
        return f"{await work('grep')} {page}"

    names = ["browser", "screenshot", "grep"] * 6
    calls = [{"name": name, "args": {"page": n}, "id": f"c{n}", "type": "tool_call"} for n, name in enumerate(names)]

    def answers() -> Iterator[AIMessage]:
        yield AIMessage("", tool_calls=calls)
        yield AIMessage("done")

    rm = ResourceManager(
        tools={
            "browser": {"concurrent": 4, "conflicts": ["screen"]},
            "screenshot": {"conflicts": ["screen"]},
            "grep": {"concurrent": 2},
        }
    )
    agent = create_agent(Model(messages=answers()), [browser, screenshot, grep], middleware=[AgentRMMiddleware(rm)])
    result = await agent.ainvoke({"messages": [("user", "go")]})
    assert [m.content for m in result["messages"] if isinstance(m, ToolMessage)] == [f"{x} {n}" for n, x in enumerate(names)]
    assert max(one.count("grep") for one in seen) == 2
    assert max(one.count("browser") + one.count("screenshot") for one in seen) == 1
    assert rm.statistics().pools["tools.browser"].settled == 6
