"""Every slot of a crew, an agent or a flow that holds an LLM or a tool, found by walking through it.

What is CrewAI's own (agents, tasks, memories, guardrails, plans, executors) or built on it is walked in place; LLMs and
tools in it, alone or in lists and mappings, are replaced by gated ones, each by the same one everywhere. A model's name
where CrewAI would make an LLM of it later is made one now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from operator import is_
from typing import Any

from crewai.agent.planning_config import PlanningConfig
from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.agents.agent_builder.base_agent_executor import BaseAgentExecutor
from crewai.crew import Crew
from crewai.flow.flow import Flow
from crewai.llms.base_llm import BaseLLM
from crewai.memory.memory_scope import MemoryScope, MemorySlice
from crewai.memory.unified_memory import Memory
from crewai.task import Task
from crewai.tasks.llm_guardrail import LLMGuardrail
from crewai.tools.base_tool import BaseTool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.utilities.llm_utils import create_llm

from agentrm.adapters.copies import gate_of, turn
from agentrm_crewai.gating import Gate
from agentrm_crewai.llms import gate_llm_with
from agentrm_crewai.pacing import paced
from agentrm_crewai.threads import free_steps
from agentrm_crewai.tools import gate_tool_with

__all__ = ["Walk", "llms_in"]

_NAMED: dict[Any, tuple[str, ...]] = {
    Crew: ("manager_llm", "planning_llm", "chat_llm", "function_calling_llm"),
    BaseAgent: ("llm", "function_calling_llm"),
    PlanningConfig: ("llm",),
}
"""Slots in which a model's name stands for an LLM. A memory makes its own when it is first used."""
_LISTS = (list, tuple, dict)
_PART = (BaseLLM, BaseTool, CrewStructuredTool)
_WALKED = (
    Crew, BaseAgent, BaseAgentExecutor, Flow, Task, PlanningConfig, LLMGuardrail, Memory, MemoryScope, MemorySlice
)  # fmt: skip
_CLASSES = 4096
_DEPTH = 2  # of lists and mappings
_PLANNER = "gpt-5.4-mini"  # what CrewAI plans with where nothing is said


_Kind = tuple[type, ...] | None


class _Kinds(dict[type, _Kind]):
    """Which of the three an object of a class is; None: it is left alone, as are most. A walk asks it of each value in
    a crew, and CrewAI makes an executor, which is walked, for each task: so it is kept, as what answers quickest."""

    def __missing__(self, cls: type) -> _Kind:
        if len(self) >= _CLASSES:
            self.clear()
        lists = _LISTS if cls in _LISTS else None
        self[cls] = kind = lists or next((kind for kind in (_PART, _WALKED) if issubclass(cls, kind)), None)
        return kind


_kind = _Kinds().__getitem__


class Walk:
    """One walk for one gate. `methods`: what differs, by kind of container; `known`: containers that were walked."""

    def __init__(self, gate: Gate, methods: Mapping[Any, Any], known: Iterable[Any] = ()) -> None:
        self._gate, self._methods = gate, methods
        self._gated: dict[int, tuple[Any, Any]] = {}  # with the original, so that no id is used again
        self._seen = {id(x) for x in known}

    def gated(self, x: Any, depth: int = _DEPTH) -> Any:
        """The gated equivalent of an LLM or tool, a container walked through, anything else as it is."""
        kind = _kind(type(x))
        if kind is _LISTS:
            return self._parts(x, depth) if x and depth else x
        if kind is _PART:
            return self._part(x)
        if kind is _WALKED:
            self._walk(x)
        return x

    def _parts(self, x: Any, depth: int) -> Any:
        """Those of a list or mapping; that itself, where none of them is replaced."""
        is_named = type(x) is dict
        if not any(map(_kind, map(type, x.values() if is_named else x))):
            return x
        if is_named:
            named = {key: self.gated(value, depth - 1) for key, value in x.items()}
            return x if all(map(is_, named.values(), x.values())) else named
        parts = [self.gated(part, depth - 1) for part in x]
        return x if all(map(is_, parts, x)) else type(x)(parts)

    def _part(self, x: Any) -> Any:
        known = self._gated.get(id(x))
        if known is not None:
            return known[1]
        if isinstance(x, CrewStructuredTool):  # made of a tool: its function is a method of that
            tool = getattr(x, "_original_tool", None)
            within: Any = None if tool is None else self._part(tool)
            gated: Any = x if within is tool else within.to_structured_tool()
        elif _is_gated(x, self._gate):
            gated = x
        else:
            gated = gate_llm_with(self._gate, x) if isinstance(x, BaseLLM) else gate_tool_with(self._gate, x)
        self._gated[id(x)] = self._gated[id(gated)] = (x, gated)
        if isinstance(gated, BaseTool):  # it may hold an LLM or a crew
            self._walk(gated)
        return gated

    def _walk(self, x: Any) -> None:
        if id(x) in self._seen:
            return
        self._seen.add(id(x))
        self._name_llms(x)
        for held in (vars(x), getattr(x, "__pydantic_private__", None) or {}):
            kinds = list(map(_kind, map(type, held.values())))  # of which nearly all are None
            for name, value in list(compress(held.items(), kinds)):
                if (new := self.gated(value)) is not value:
                    held[name] = new
        if isinstance(x, (Crew, BaseAgent)):
            x._rpm_controller = self._paced(x._rpm_controller)
        if isinstance(x, Flow):  # an agent's executor is one
            free_steps(x)
        for kind, methods in self._methods.items():
            if isinstance(x, kind):
                turn(x, self._gate, methods)

    def _paced(self, controller: Any) -> Any:
        """The same for all that share it."""
        if id(controller) not in self._gated:
            self._gated[id(controller)] = controller, paced(self._gate.rm, controller)
        return self._gated[id(controller)][1]

    def _name_llms(self, x: Any) -> None:
        if isinstance(x, Crew) and x.planning:
            x.planning_llm = x.planning_llm or _PLANNER
        for kind, slots in _NAMED.items():
            if isinstance(x, kind):
                for slot in slots:
                    if isinstance(vars(x).get(slot), str):
                        vars(x)[slot] = create_llm(vars(x)[slot])


def _is_gated(x: Any, gate: Gate) -> bool:
    """Already as this gate would have it."""
    found = gate_of(x)
    return found is not None and found[0].rm is gate.rm and gate.over(found[0]) is found[0]


def llms_in(crew: Crew) -> Iterator[BaseLLM]:
    """The LLMs whose use CrewAI counts as the crew's, those of its agents and of its manager."""
    agents = [*crew.agents, *([crew.manager_agent] if crew.manager_agent is not None else [])]
    return (agent.llm for agent in agents if isinstance(agent.llm, BaseLLM))
