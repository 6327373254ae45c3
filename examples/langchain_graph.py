"""A LangGraph of your own: a gated model in its node, gated tools, one bounded wait.

OPENAI_API_KEY=... python examples/langchain_graph.py
"""

from __future__ import annotations

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition

import agentrm
from agentrm_langchain import tool_node

rm = agentrm.ResourceManager(pools={"default": {"lanes": 4}, "tools": {"lanes": 2}})


@tool
def population(city: str) -> str:
    """The population of a city."""
    return {"Paris": "2.1 million", "Oslo": "0.7 million"}.get(city, "unknown")


model = rm.attach(ChatOpenAI(model="gpt-5-mini"), agent="geographer", wait_max=60).bind_tools([population])


def answer(state: MessagesState) -> dict[str, object]:
    return {"messages": [model.invoke(state["messages"])]}


graph = (
    StateGraph(MessagesState)
    .add_node("answer", answer)
    .add_node("tools", tool_node(rm, [population], agent="geographer"))
    .add_edge(START, "answer")
    .add_conditional_edges("answer", tools_condition)
    .add_edge("tools", "answer")
    .compile()
)

if __name__ == "__main__":
    for message in graph.invoke({"messages": [("user", "How many people live in Oslo?")]})["messages"]:
        message.pretty_print()
    pools = rm.statistics().pools
    print({name: (pool.granted, pool.in_use) for name, pool in pools.items()})
