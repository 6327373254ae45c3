"""Who makes a call: the order in which the plugin looks, one place taken away at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

import agentrm
from agentrm.adapters.conformance import Provider, Reply
from agentrm.adapters.conformance.harness import Threads
from agentrm_langchain import AgentRMMiddleware
from tests.plugins.langchain.scenes import HELLO, Scripted, agent_of, calling, manager, tool_of
from tests.plugins.langchain.stub_models import AsyncStubChat, StubChat


@dataclass
class Context:
    agent: str | None = None
    priority: Any = None
    tenant: str | None = None
    agentrm_priority: Any = None


def holder(ask: Any, rm: agentrm.ResourceManager, provider: Provider) -> Any:
    """Who holds the lane while the provider is asked."""
    threads = Threads(ask)
    provider.wait_open(1)
    (found,) = [info for info in rm.snapshot().holding if info.pool == "default"]
    provider.release()
    (outcome,) = threads.outcomes()
    if isinstance(outcome, BaseException):
        raise outcome
    return found


def test_each_place_answers_when_those_before_it_do_not() -> None:
    everything = {
        "argument": {"agent": "by-argument"},
        "context": Context(agent="by-context"),
        "configurable": {"agentrm_agent": "by-configurable"},
        "metadata": {"agentrm_agent": "by-metadata"},
        "identity": "by-identity",
        "name": "by-name",
    }
    for missing in range(len(everything) + 1):
        have = dict(list(everything.items())[missing:])
        rm, provider = manager(), Provider(Reply(holds=True))
        agent = agent_of(
            AsyncStubChat(provider=provider),
            (),
            AgentRMMiddleware(rm, **have.get("argument", {})),
            context_schema=Context,
            name=have.get("name"),
        )
        config = {part: have.get(part, {}) for part in ("configurable", "metadata")}

        def ask(agent: Any = agent, config: Any = config, have: Any = have) -> None:
            with agentrm.identity(agent=have.get("identity")):
                agent.invoke(HELLO, config, context=have.get("context", Context()))

        found = holder(ask, rm, provider)
        assert found.agent == (f"by-{next(iter(have))}" if have else "default")


def test_the_thread_is_the_session_and_a_bare_models_config_counts() -> None:
    rm, provider = manager(), Provider(Reply(holds=True))
    agent = agent_of(AsyncStubChat(provider=provider), (), AgentRMMiddleware(rm), checkpointer=InMemorySaver())
    assert holder(lambda: agent.invoke(HELLO, {"configurable": {"thread_id": "t-7"}}), rm, provider).session == "t-7"

    said = {"metadata": {"agentrm_agent": "bare", "agentrm_priority": "background"}}
    for kind in (AsyncStubChat, StubChat):
        for way in ("invoke", "stream"):
            rm, provider = manager(), Provider(Reply(holds=True))
            model = rm.attach(kind(provider=provider))
            ask = {"invoke": lambda m=model: m.invoke("x", said), "stream": lambda m=model: list(m.stream("x", said))}
            found = holder(ask[way], rm, provider)
            assert (found.agent, found.priority) == ("bare", "background"), (kind, way)


def test_a_person_waits_for_the_outer_agent_and_not_for_its_sub_agents() -> None:
    """The runtime context is inherited by what a tool runs; an argument is not."""
    for arguments, expected in (({}, "subagent"), ({"priority": "interactive"}, "interactive")):
        rm, provider = manager(2), Provider(Reply(holds=True))
        inner = agent_of(AsyncStubChat(provider=provider), (), AgentRMMiddleware(rm, **arguments), name="inner")
        research = tool_of(lambda inner=inner: inner.invoke(HELLO)["messages"][-1].text, "research")
        outer = agent_of(
            Scripted(says=[calling("research"), AIMessage("done")]),
            [research],
            AgentRMMiddleware(rm),
            context_schema=Context,
            name="outer",
        )
        found = holder(lambda outer=outer: outer.invoke(HELLO, context=Context(priority="interactive")), rm, provider)
        assert (found.agent, found.priority) == ("inner", expected)


def test_a_users_own_field_called_priority_is_left_alone_and_a_wrong_one_of_ours_is_not() -> None:
    rm, provider = manager(), Provider(Reply(holds=True))
    agent = agent_of(AsyncStubChat(provider=provider), (), AgentRMMiddleware(rm), context_schema=Context)
    assert holder(lambda: agent.invoke(HELLO, context=Context(priority=2)), rm, provider).priority == "interactive"
    with pytest.raises(agentrm.ConfigError, match="interactive, subagent, background"):
        agent.invoke(HELLO, context=Context(agentrm_priority="urgent"))
    with pytest.raises(agentrm.ConfigError, match="attach.priority"):
        rm.attach(StubChat(provider=provider), priority="urgent")
    with pytest.raises(agentrm.ConfigError, match="AgentRMMiddleware.colour"):
        AgentRMMiddleware(rm, colour="red")
