"""What is different about a gated agent, crew, flow or memory: it stays gated through everything that CrewAI does with
it (copies, checkpoints, tools and LLMs made when it runs), keeps no thread of the loop, and does not run a task again
for what the gate has tried already."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.crew import Crew
from crewai.flow.flow import Flow
from crewai.memory.unified_memory import Memory
from crewai.types.usage_metrics import UsageMetrics

from agentrm.adapters import leavable
from agentrm.adapters.copies import like
from agentrm.errors import AgentRMError
from agentrm.limits.provider_errors import read_error
from agentrm_crewai.checkpoints import put_back
from agentrm_crewai.gating import Gate, Work, working
from agentrm_crewai.llms import gate_llm_with
from agentrm_crewai.walking import Walk, llms_in

__all__ = ["attach_all"]


def attach_all(gate: Gate, x: Any) -> Any:
    """`x` with every LLM and tool in it gated."""
    return Walk(gate, _METHODS).gated(x)


def _restored(cls: type[Any], gate: Gate) -> classmethod[Any, Any, Any]:
    def from_checkpoint(_: type, /, config: Any, **more: Any) -> Any:
        found = cls.from_checkpoint(config, **more)
        put_back(gate.root, found)
        return attach_all(gate, found)

    return classmethod(from_checkpoint)


def _copied(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    @like(cls.copy)
    def copy(self: Any) -> Any:
        return attach_all(gate, cls.copy(self))

    return copy


def _kept(cls: type[Any], gate: Gate, name: str) -> Callable[..., Any]:
    """After a step, what is done is written down."""
    native = getattr(cls, name)

    @like(native)
    def kept(self: Any, *args: Any, **kwargs: Any) -> None:
        native(self, *args, **kwargs)
        if gate.keep is not None:
            gate.keep()

    return kept


# --- agents


def _agent(cls: type[Any], gate: Gate) -> dict[str, Any]:
    methods = {
        "copy": _copied(cls, gate),
        "from_checkpoint": _restored(cls, gate),
        "create_agent_executor": _create_agent_executor(cls, gate),
        "execute_task": _worked(cls, gate, "execute_task"),
        "aexecute_task": _worked(cls, gate, "aexecute_task"),
    }
    for name, make in _IF_THERE.items():
        if hasattr(cls, name):
            methods[name] = make(cls, gate)
    return methods


def _create_agent_executor(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    @like(cls.create_agent_executor)
    def create_agent_executor(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = cls.create_agent_executor(self, *args, **kwargs)
        # CrewAI adds tools for each task, and an overlay of models may have put in another LLM.
        Walk(gate, _METHODS, known=(self.crew, getattr(self.agent_executor, "task", None))).gated(self)
        return made

    return create_agent_executor


def _prepare_kickoff(cls: type[Any], gate: Gate) -> Callable[..., Any]:
    @like(cls._prepare_kickoff)
    def _prepare_kickoff(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = cls._prepare_kickoff(self, *args, **kwargs)
        attach_all(gate, [self, made[0]])
        return made

    return _prepare_kickoff


def _check_execution_error(cls: type[Any], gate: Gate) -> Callable[..., None]:
    @like(cls._check_execution_error)
    def _check_execution_error(self: Any, e: Exception, *args: Any, **kwargs: Any) -> None:
        cls._check_execution_error(self, e, *args, **kwargs)  # tells the listeners
        if any(isinstance(cause, AgentRMError) or read_error(cause) is not None for cause in _causes(e)):
            raise e

    return _check_execution_error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _worked(cls: type[Any], gate: Gate, name: str) -> Callable[..., Any]:
    native = getattr(cls, name)

    def work_of(agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work:
        task = args[0] if args else kwargs.get("task")
        limit = getattr(agent, "max_execution_time", None)
        until = None if limit is None else gate.rm.clock.now_ns() + int(limit * 1e9)
        place = "" if gate.log is None else _place(agent, task)  # CrewAI works a task's key out at each look
        return Work(agent.role, place, until, gate.log)

    if inspect.iscoroutinefunction(native):

        @like(native)
        async def worked_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            with working(work_of(self, args, kwargs)):
                return await native(self, *args, **kwargs)

        return worked_async

    @like(native)
    def worked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with working(work_of(self, args, kwargs)):
            return native(self, *args, **kwargs)

    return worked


def _place(agent: Any, task: Any) -> str:
    """The same for the same task in another process: its key, and which of the crew's tasks with that key it is."""
    key = getattr(task, "key", None)
    if key is None:
        return "kickoff"
    twins = [other for other in getattr(agent.crew, "tasks", ()) if other.key == key]
    return f"{key}/{next((number for number, twin in enumerate(twins) if twin is task), 0)}"


_IF_THERE: dict[str, Callable[[type[Any], Gate], Any]] = {
    "_prepare_kickoff": _prepare_kickoff,
    "_check_execution_error": _check_execution_error,
    "kickoff": lambda cls, gate: _worked(cls, gate, "kickoff"),
    "kickoff_async": lambda cls, gate: _worked(cls, gate, "kickoff_async"),
}
"""What only CrewAI's own agents have, not the adapters of others."""


# --- crews


def _crew(cls: type[Any], gate: Gate) -> dict[str, Any]:
    @like(cls.kickoff_async)
    async def kickoff_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.stream:
            return await cls.kickoff_async(self, *args, **kwargs)
        return await leavable(lambda: self.kickoff(*args, **kwargs))

    @like(cls._create_manager_agent)
    def _create_manager_agent(self: Any) -> None:
        cls._create_manager_agent(self)
        attach_all(gate, self)

    @like(cls.calculate_usage_metrics)
    def calculate_usage_metrics(self: Any) -> UsageMetrics:
        """Each counter once, however many agents share its LLM."""
        total = UsageMetrics()
        for llm in {id(llm._token_usage): llm for llm in llms_in(self)}.values():
            total.add_usage_metrics(llm.get_token_usage_summary())
        self.usage_metrics = total
        return total

    return {
        "copy": _copied(cls, gate),
        "from_checkpoint": _restored(cls, gate),
        "kickoff_async": kickoff_async,
        "_process_task_result": _kept(cls, gate, "_process_task_result"),
        "_create_manager_agent": _create_manager_agent,
        "calculate_usage_metrics": calculate_usage_metrics,
    }


# --- flows and memories


def _flow(cls: type[Any], gate: Gate) -> dict[str, Any]:
    if cls.is_crewai_internal:  # an agent's executor, whose steps are parts of a task
        return {}
    return {
        "from_checkpoint": _restored(cls, gate),
        "_persist_method_completion": _kept(cls, gate, "_persist_method_completion"),
    }


def _memory(cls: type[Any], gate: Gate) -> dict[str, Any]:
    def _llm(self: Any) -> Any:
        """Made of a model's name when it is first used."""
        llm = self._llm_instance = gate_llm_with(gate, cls._llm.fget(self))
        return llm

    return {"_llm": property(_llm)}


_METHODS = {BaseAgent: _agent, Crew: _crew, Flow: _flow, Memory: _memory}
