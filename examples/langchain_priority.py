"""A person's agent beside twenty background summaries at one provider: the person does not wait for them.

OPENAI_API_KEY=... python examples/langchain_priority.py
"""

from __future__ import annotations

import asyncio
import time

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

import agentrm
from agentrm_langchain import AgentRMMiddleware

rm = agentrm.ResourceManager(pools={"default": {"lanes": 2, "limits": [{"requests": 500, "per": 60}]}})


def agent_named(name: str, priority: str):
    gate = AgentRMMiddleware(rm, priority=priority)
    return create_agent(ChatOpenAI(model="gpt-5-mini"), tools=[], middleware=[gate], name=name)


async def ask(agent: object, text: str) -> float:
    start = time.perf_counter()
    await agent.ainvoke({"messages": [("user", text)]})  # type: ignore[attr-defined]
    return time.perf_counter() - start


async def main() -> None:
    person, indexer = agent_named("assistant", "interactive"), agent_named("indexer", "background")
    background = [asyncio.create_task(ask(indexer, f"Summarise chapter {i}.")) for i in range(20)]
    await asyncio.sleep(0)  # they are queued before the person asks
    waited = await ask(person, "What is a lane?")
    slowest = max(await asyncio.gather(*background))
    print(f"the person waited {waited:.2f} s, the last summary came after {slowest:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
