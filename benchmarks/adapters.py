"""What a plugin adds to one call of its framework, and to its import: `python -m benchmarks.adapters [--only NAME]`.

Model and tool are mocks that answer after one turn of the loop (a real one never answers within the same), so a call's
processor time is the framework's own cost. Bare and gated calls take turns in one process; what is read is the
difference. The bar: 2 % of the framework's own cost, or 100 microseconds, whichever is more. What was measured
stands in results_adapters.md after each framework; with `--only` the others stay there as they are.

A framework is one function in `FRAMEWORKS` that returns its cases; `WARM_IMPORT` names what its plugin loads.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import logging
import re
import statistics
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import process_time_ns
from typing import Any

import agentrm
from benchmarks import report

SHARE, FLOOR_NS = 0.02, 100_000
IMPORT_BAR_MS = 20.0
LONGEST_ROUND_NS = 1e9


@dataclass(frozen=True)
class Case:
    """The same call twice: as the framework makes it, and through the plugin, which asks `rm` for its lanes."""

    name: str
    bare: Callable[[], Awaitable[object]]
    gated: Callable[[], Awaitable[object]]
    rm: agentrm.ResourceManager

    async def leases(self) -> int:
        """How many leases one gated call takes: model and tool calls within it."""
        before = self._granted()
        await self.gated()
        return self._granted() - before

    def _granted(self) -> int:
        return sum(pool.granted for pool in self.rm.statistics().pools.values())


def _manager() -> agentrm.ResourceManager:
    return agentrm.ResourceManager(pools={"default": {"lanes": 4, "limits": [{"requests": 10**6, "per": 1}]}})


def langchain() -> Iterator[Case]:
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.tools import tool

    from agentrm_langchain import AgentRMMiddleware

    class Mock(GenericFakeChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return self._generate(*args, **kwargs)

    class Forever:
        def __iter__(self) -> Forever:
            return self

        def __next__(self) -> AIMessage:
            return AIMessage("said")

    @tool
    async def look() -> str:
        """Looks."""
        await asyncio.sleep(0)
        return "seen"

    class Nothing(AgentMiddleware):
        """The hooks of ours, empty. LangChain traces each, makes a request for it, and gives the graph a step for
        tools: that costs more than any gate and is LangChain's own."""

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

    rm, model = _manager(), Mock(messages=Forever())
    gated, gated_look = rm.attach(model), rm.attach(look)
    bare_agent, gated_agent = create_agent(model, []), create_agent(gated, [])
    with_nothing = create_agent(model, [], middleware=[Nothing()])
    with_ours = create_agent(model, [], middleware=[AgentRMMiddleware(rm)])
    hello: Any = {"messages": [HumanMessage("hello")]}
    yield Case("model.ainvoke", lambda: model.ainvoke("hello"), lambda: gated.ainvoke("hello"), rm)
    yield Case("tool.ainvoke", lambda: look.ainvoke({}), lambda: gated_look.ainvoke({}), rm)
    yield Case("agent, model attached", lambda: bare_agent.ainvoke(hello), lambda: gated_agent.ainvoke(hello), rm)
    yield Case("agent, middleware", lambda: with_nothing.ainvoke(hello), lambda: with_ours.ainvoke(hello), rm)


def autogen() -> Iterator[Case]:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.conditions import MaxMessageTermination
    from autogen_agentchat.teams import RoundRobinGroupChat
    from autogen_core.model_context import BufferedChatCompletionContext
    from autogen_core.models import CreateResult, ModelInfo, RequestUsage, UserMessage
    from autogen_core.tools import FunctionTool, StaticStreamWorkbench
    from autogen_ext.models.replay import ReplayChatCompletionClient

    said = CreateResult(finish_reason="stop", content="said", usage=RequestUsage(5, 5), cached=False)
    info = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)

    class Mock(ReplayChatCompletionClient):
        def __init__(self) -> None:
            super().__init__([], model_info=info)

        async def create(self, *args: Any, **kwargs: Any) -> CreateResult:
            await asyncio.sleep(0)
            return said

    async def look() -> str:
        await asyncio.sleep(0)
        return "seen"

    def agent() -> AssistantAgent:
        return AssistantAgent("worker", Mock(), model_context=BufferedChatCompletionContext(4))

    def team() -> RoundRobinGroupChat:
        return RoundRobinGroupChat([agent()], termination_condition=MaxMessageTermination(2))

    rm, client = _manager(), Mock()
    workbench = StaticStreamWorkbench([FunctionTool(look, "Looks.")])
    gated, gated_workbench = rm.attach(client), rm.attach(workbench)
    bare_agent, gated_agent = agent(), rm.attach(agent())
    hello = [UserMessage(content="hello", source="user")]
    yield Case("client.create", lambda: client.create(hello), lambda: gated.create(hello), rm)

    async def tool(of: Any) -> None:
        async for _ in of.call_tool_stream("look"):  # as agents call it
            pass

    yield Case("workbench.call_tool", lambda: tool(workbench), lambda: tool(gated_workbench), rm)
    yield Case("agent.run", lambda: bare_agent.run(task="hello"), lambda: gated_agent.run(task="hello"), rm)
    bare_team, gated_team = team(), rm.attach(team())
    yield Case("team.run", lambda: bare_team.run(task="hello"), lambda: gated_team.run(task="hello"), rm)


def crewai() -> Iterator[Case]:
    import os

    os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_DISABLE_TRACKING="true", CREWAI_TRACING_ENABLED="false")
    from crewai import Agent, Crew, Task
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools.base_tool import BaseTool

    class Mock(BaseLLM):
        def call(self, *args: Any, **kwargs: Any) -> str:
            return "said"

        async def acall(self, *args: Any, **kwargs: Any) -> str:
            await asyncio.sleep(0)
            return "said"

    class Look(BaseTool):
        name: str = "look"
        description: str = "Looks."

        def _run(self) -> str:
            return "seen"

        async def _arun(self) -> str:
            await asyncio.sleep(0)
            return "seen"

    def crew() -> Crew:
        agent = Agent(role="worker", goal="to work", backstory="works", llm=Mock(model="mock"))
        return Crew(agents=[agent], tasks=[Task(description="work", expected_output="anything", agent=agent)])

    rm, llm, look = _manager(), Mock(model="mock"), Look()
    gated, gated_look = rm.attach(llm), rm.attach(look)
    bare_crew, gated_crew = crew(), rm.attach(crew())
    yield Case("llm.acall", lambda: llm.acall("hello"), lambda: gated.acall("hello"), rm)
    yield Case("tool.arun", look.arun, gated_look.arun, rm)
    yield Case("crew.akickoff", bare_crew.akickoff, gated_crew.akickoff, rm)


FRAMEWORKS: dict[str, Callable[[], Iterator[Case]]] = {"langchain": langchain, "autogen": autogen, "crewai": crewai}
WARM_IMPORT = {
    "langchain": ("langchain.agents", "langgraph.prebuilt", "agentrm_langchain.attaching", "agentrm_langchain.models",
                  "agentrm_langchain.tools", "agentrm_langchain.middleware"),
    "autogen": ("autogen_agentchat.teams", "agentrm_autogen.attaching", "agentrm_autogen.client",
                "agentrm_autogen.workbench", "agentrm_autogen.context", "agentrm_autogen.hibernation"),
    "crewai": ("crewai", "crewai.state.provider.core", "agentrm_crewai.attaching", "agentrm_crewai.containers",
               "agentrm_crewai.checkpoints", "agentrm_crewai.once"),
}  # fmt: skip


@dataclass(frozen=True)
class Added:
    """Nanoseconds of processor time per call: bare, and what the gate adds: median, lowest and highest round."""

    bare: float
    median: float
    low: float
    high: float


def overhead(case: Case, rounds: int, n: int) -> Added:
    """A round: `n` calls of each, one bare and one gated in turns, so that both see the same machine; their medians."""
    asyncio.run(_round(case, 3))
    found = [asyncio.run(_round(case, n)) for _ in range(rounds)]
    added = sorted(gated - bare for bare, gated in found)
    return Added(statistics.median(bare for bare, _ in found), statistics.median(added), added[0], added[-1])


async def _round(case: Case, n: int) -> tuple[float, float]:
    bare: list[int] = []
    gated: list[int] = []
    turns = [(case.bare, bare), (case.gated, gated)]
    for _ in range(n):
        turns.reverse()
        for call, taken in turns:
            start = process_time_ns()
            await call()
            taken.append(process_time_ns() - start)
    return statistics.median(bare), statistics.median(gated)


def own_import_ms(framework: str, times: int = 7) -> float:
    """Milliseconds that the plugin's own modules take to import, without what they import: for each module the best of
    several fresh processes, because the clock behind it runs on while others have the processor. Their bytecode is
    there, as after an installation: where Python may not write it, each import of a checkout would compile again."""
    for home in import_module(f"agentrm_{framework}").__path__:
        compileall.compile_dir(home, quiet=1)
    code = "; ".join(f"import {module}" for module in WARM_IMPORT[framework])
    best: dict[str, int] = {}
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
        )
        for line in done.stderr.splitlines():
            own, _, name = [part.strip() for part in line.removeprefix("import time:").split("|")]
            if name.startswith(f"agentrm_{framework}"):
                best[name] = min(int(own), best.get(name, int(own)))
    return sum(best.values()) / 1000


HEAD = """## Adapters

    python -m benchmarks.adapters

What each plugin adds to one call: processor time of the whole process, mock models and tools that answer after one
turn of the loop; bare and gated calls in turns in one process, the median of the rounds (lowest and highest
round), in each round the medians of its calls. Bar: 2 % of the framework's own cost, or 100 us, whichever is
more. Leases: the model and tool calls in one such call, as the manager counted them. "agent, middleware" stands
beside an agent whose middleware has the same hooks and does nothing. Import: the plugin's own modules without what
they import, from their bytecode, best of several processes; bar 20 ms. The figures below were taken with real-time
priority (`chrt -f 5 python -m benchmarks.adapters --only NAME`) beside other work, which fills the caches.
Where the rounds differ by more than what is added (`crew.akickoff`), the difference is lost in their noise.
"""
TABLE = """| call | leases | bare | gate adds | bar | |
|---|---:|---:|---:|---:|---|
"""
RESULTS = Path(__file__).parent / "results_adapters.md"


def measured(framework: str, rounds: int, most: int) -> tuple[list[tuple[str, ...]], int]:
    """The rows of one framework's table, and how many bars were missed."""
    rows: list[tuple[str, ...]] = []
    missed = 0
    for case in FRAMEWORKS[framework]():
        calls = max(10, min(most, int(LONGEST_ROUND_NS / overhead(case, 1, 5).bare)))
        added = overhead(case, rounds, calls)
        bar = max(SHARE * added.bare, FLOOR_NS)
        missed += added.median > bar
        low, median, high = (f"{ns / 1e3:.0f}" for ns in (added.low, added.median, added.high))
        leases = str(asyncio.run(case.leases()))
        cells = leases, f"{added.bare / 1e3:.0f} us", f"{median} us ({low} to {high})", f"{bar / 1e3:.0f} us"
        rows.append((case.name, *cells, "met" if added.median <= bar else "missed"))
        print(framework, *rows[-1], sep=" | ", flush=True)
    took = own_import_ms(framework)
    missed += took > IMPORT_BAR_MS
    verdict = "met" if took <= IMPORT_BAR_MS else "missed"
    rows.append(("import", "", "", f"{took:.1f} ms", f"{IMPORT_BAR_MS:.0f} ms", verdict))
    print(framework, *rows[-1], sep=" | ", flush=True)
    return rows, missed


def written() -> dict[str, str]:
    """The sections that stand in the results, by framework."""
    text = RESULTS.read_text() if RESULTS.exists() else ""
    parts = re.split(r"^### (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--only", choices=FRAMEWORKS, help="measure this framework alone (default: all)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=300, help="calls in a round, at most")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    any_missed = 0
    for framework in [args.only] if args.only else FRAMEWORKS:
        rows, missed = measured(framework, args.rounds, args.calls)
        any_missed += missed
        how = f"{args.rounds} rounds of up to {args.calls} calls. {report.machine()}"
        table = TABLE + "".join(f"| {' | '.join(row)} |\n" for row in rows)
        sections = {**written(), framework: f"\n{how}\n\n{table}"}
        parts = [f"\n### {name}\n{sections[name].rstrip()}\n" for name in FRAMEWORKS if name in sections]
        RESULTS.write_text(HEAD + "".join(parts))
    return 1 if any_missed else 0


if __name__ == "__main__":
    sys.exit(main())
