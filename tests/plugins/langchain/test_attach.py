"""`rm.attach(x)`: what comes back is the user's own thing, gated; what can't be gated says what to write instead."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
from langchain.tools import ToolRuntime
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.load import dumps
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import agentrm
from agentrm.adapters import AttachError
from agentrm.adapters.conformance import Provider
from agentrm_langchain import AgentRMMiddleware, gate_tools
from tests.plugins.langchain.scenes import HELLO, Scripted, agent_of, calling, granted, manager, run_async, tool_of
from tests.plugins.langchain.stub_models import AsyncStubChat, StubChat, result_of


def test_attach_alone_is_enough() -> None:
    rm, provider = manager(), Provider()
    model = rm.attach(StubChat(provider=provider), agent="planner")
    assert model.invoke("hello").text == "one two three"
    assert granted(rm) == 1


def test_a_gated_model_is_still_the_users_model() -> None:
    rm, provider = manager(), Provider()
    model = AsyncStubChat(provider=provider)
    gated = rm.attach(model)
    assert isinstance(gated, AsyncStubChat) and gated is not model
    assert type(model) is AsyncStubChat, "the user's own object is left alone"
    assert (type(gated).__name__, type(gated).__module__) == (type(model).__name__, type(model).__module__)
    assert gated.lc_id() == model.lc_id()
    assert gated._get_llm_string() == model._get_llm_string()
    assert gated._get_ls_params() == model._get_ls_params()
    assert gated == model or gated.model_dump() == model.model_dump()
    assert dumps(gated) == dumps(model)
    for twin in (gated.model_copy(update={"model": "other"}), copy.copy(gated), gated.bind(stop=["x"])):
        twin.invoke("hello")
    assert granted(rm) == provider.calls == 3, "copies and bindings of a gated model are gated"


def test_what_is_attached_says_that_it_cannot_be_pickled_and_what_to_do() -> None:
    rm, model = manager(), FakeListLLM(responses=["said"])
    assert pickle.loads(pickle.dumps(model)) == model
    gated = rm.attach(model)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(pickle.PicklingError, match="the FakeListLLM that is attached .* attach it where"):
            pickle.dumps(gated, protocol)
    for twin in (copy.copy(gated), copy.deepcopy(gated)):
        assert twin.invoke("hello") == "said"
    assert granted(rm) == 2


def test_a_gated_model_keeps_its_place_in_chains() -> None:
    rm, provider = manager(), Provider()
    fails = rm.attach(_Failing(provider=provider, times=1))
    gated = rm.attach(AsyncStubChat(provider=provider))
    prompt = ChatPromptTemplate.from_template("{q}")
    chains = [
        prompt | gated | StrOutputParser(),
        fails.with_retry(stop_after_attempt=2, wait_exponential_jitter=False) | StrOutputParser(),
        rm.attach(_Failing(provider=provider, times=9)).with_fallbacks([gated]) | StrOutputParser(),
        rm.attach(prompt | AsyncStubChat(provider=provider).bind(stop=["x"]) | StrOutputParser()),
        RunnableLambda(lambda x: x) | rm.attach(RunnableParallel(a=AsyncStubChat(provider=provider))) | _text,
        rm.attach(_Failing(provider=provider, times=9).with_fallbacks([AsyncStubChat(provider=provider)])) | _text,
    ]
    for number, chain in enumerate(chains):
        question: Any = {"q": "hello"} if number in (0, 3) else "hello"
        before = (provider.calls, granted(rm))
        assert chain.invoke(question) == "one two three", number
        assert run_async(lambda chain=chain, question=question: chain.ainvoke(question)) == "one two three", number
        assert provider.calls - before[0] == granted(rm) - before[1] > 0, number


def test_structured_output_and_tools_work_through_the_gate() -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        """An answer."""

        number: int

    rm = manager()
    call = {"name": "Answer", "args": {"number": 7}, "id": "1", "type": "tool_call"}
    model = rm.attach(Scripted(says=[AIMessage("", tool_calls=[call])]))
    assert model.with_structured_output(Answer).invoke("hello") == Answer(number=7)
    assert granted(rm) == 1


def test_a_completion_model_is_gated_too() -> None:
    rm = manager()
    model = rm.attach(FakeListLLM(responses=["an answer"]))
    assert model.invoke("hello") == "an answer"
    assert run_async(lambda: model.ainvoke("hello")) == "an answer"
    assert granted(rm) == 2


def test_the_streaming_protocol_is_gated() -> None:
    rm, provider = manager(), Provider()
    model = rm.attach(AsyncStubChat(provider=provider))
    stream = model.stream_events("hello", version="v3")
    assert stream.output.text == "one two three"

    async def main() -> str:
        stream = await model.astream_events("hello", version="v3")
        return (await stream.output).text

    assert run_async(main) == "one two three"
    assert granted(rm) == provider.calls == 2
    assert rm.statistics().running == 0


def test_a_native_event_hook_is_gated() -> None:
    class Native(AsyncStubChat):
        def _stream_chat_model_events(self, messages: Any, **_: Any) -> Any:
            self.provider.call()
            yield {"event": "message-start", "role": "ai", "id": "m"}
            yield {"event": "content-block-start", "index": 0, "content": {"type": "text", "text": ""}}
            yield {"event": "content-block-delta", "index": 0, "delta": {"type": "text-delta", "text": "native"}}
            yield {"event": "content-block-finish", "index": 0, "content": {"type": "text", "text": "native"}}
            yield {"event": "message-finish", "usage": {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42}}

    rm = manager(clock=agentrm.VirtualClock(), pools={"default": {"limits": [{"tokens": 1000, "per": 60}]}})
    model = rm.attach(Native(provider=Provider()))
    assert model.stream_events("hello", version="v3").output.text == "native"
    (limit,) = rm.statistics().limits.values()
    assert (granted(rm), limit.capacity - limit.level) == (1, 42)


def test_tools_keep_their_schema_and_their_injected_arguments() -> None:
    @tool
    def plain(x: int) -> str:
        """Says x."""
        return f"x={x}"

    @tool
    def informed(x: int, runtime: ToolRuntime) -> str:
        """Says x and its call."""
        return f"x={x} of {runtime.tool_call_id} after {len(runtime.state['messages'])}"

    class Own(BaseTool):
        name: str = "own"
        description: str = "says x"

        def _run(self, x: int, run_manager: Any = None) -> str:
            return f"own {x} {run_manager is not None}"

    rm = manager()
    tools = [plain, informed, Own()]
    for mine, theirs in zip(gate_tools(rm, tools), tools, strict=True):
        assert mine.args == theirs.args and mine.tool_call_schema.model_json_schema() == (
            theirs.tool_call_schema.model_json_schema()
        )
    calls = [{"name": t.name, "args": {"x": i}, "id": f"c{i}", "type": "tool_call"} for i, t in enumerate(tools)]
    node = rm.attach(ToolNode(tools))
    graph = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile()
    asked = {"messages": [AIMessage("", tool_calls=calls)]}
    expected = ["x=0", "x=1 of c1 after 1", "own 2 True"]
    assert [m.content for m in graph.invoke(asked)["messages"][1:]] == expected
    assert [m.content for m in run_async(lambda: graph.ainvoke(asked))["messages"][1:]] == expected
    assert granted(rm, "tools") == 6
    assert gate_tools(rm, [{"type": "web_search"}]) == [{"type": "web_search"}]
    assert gate_tools(rm, [_doubled])[0].invoke({"x": 4}) == 8


def test_interrupts_pass_through_a_gated_tool() -> None:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command, interrupt

    rm = manager(tools=1)
    approve = tool_of(lambda: f"the person said {interrupt('may I?')}", "approve")
    agent = agent_of(
        Scripted(says=[calling("approve"), AIMessage("done")]),
        [approve],
        AgentRMMiddleware(rm),
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"thread_id": "1"}}
    assert agent.invoke(HELLO, config)["__interrupt__"][0].value == "may I?"
    assert rm.statistics().running == 0, "no lane is held while a person thinks"
    assert agent.invoke(Command(resume="yes"), config)["messages"][-2].content == "the person said yes"


def test_what_cannot_be_gated_says_what_to_write_instead() -> None:
    rm = manager()
    model = GenericFakeChatModel(messages=iter([]))
    for thing, instead in (
        (agent_of(model), "middleware=[AgentRMMiddleware(rm)]"),
        (StateGraph(MessagesState), "tool_node(rm, tools)"),
        (RunnableLambda(lambda x: x), "rm.attach(model)"),
        (StrOutputParser(), "rm.attach(model)"),
        (object(), "rm.lease("),
    ):
        with pytest.raises(AttachError) as caught:
            rm.attach(thing)
        assert instead in str(caught.value)
        assert type(thing).__name__ in str(caught.value)


def test_importing_the_package_loads_no_framework() -> None:
    code = (
        "import sys, time; import agentrm.adapters; start = time.process_time(); import agentrm_langchain;"
        "took = time.process_time() - start; agentrm_langchain.adapter;"
        "heavy = {m.partition('.')[0] for m in sys.modules} & {'langchain', 'langchain_core', 'langgraph', 'torch'};"
        "print(took < 0.02, bool(heavy))"
    )
    best = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    assert "True False" in [run.stdout.strip() for run in best]
    assert not any(run.stdout.strip().endswith("True") for run in best)


class _Failing(StubChat):
    """Fails that many times in a way that is not the provider's."""

    times: int = 0

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.provider.call()
        if self.times:
            self.times -= 1
            raise ValueError("not today")
        return result_of("one two three")


def _doubled(x: int) -> int:
    """Twice x."""
    return 2 * x


def _text(x: Any) -> str:
    return x["a"].text if isinstance(x, dict) else x.text


async def test_what_is_attached_again_when_its_manager_is_closed_goes_through_the_new_one_alone() -> None:
    old, new, provider = manager(), manager(), Provider()
    model, work = old.attach(StubChat(provider=provider), agent="planner"), old.attach(tool_of(lambda: "worked"))
    old.close()
    with pytest.raises(agentrm.ManagerClosed):
        model.invoke("hello")
    again, seen = new.attach(model), set()
    new.subscribe(lambda event: seen.add(event.agent))
    assert (await again.ainvoke("hello")).text == "one two three"
    assert await new.attach(work).ainvoke({}) == "worked"
    assert granted(new) == granted(new, "tools") == 1
    assert seen == {"planner", "default"}, "what was said of it before holds"
