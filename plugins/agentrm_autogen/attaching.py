"""What `rm.attach(x)` does for an object of AutoGen."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from agentrm.adapters import AttachError

if TYPE_CHECKING:
    from agentrm_autogen.gating import Gate

__all__ = ["AutoGenAdapter", "adapter"]


class AutoGenAdapter:
    """Model clients and workbenches, which are gated beside the original; agents and teams, in which every model client
    and workbench is replaced, those of agents within their tools included."""

    name = "autogen"
    packages = ("autogen_core", "autogen_agentchat", "autogen_ext")

    def attach(self, rm: Any, x: Any, **options: Any) -> Any:
        from agentrm_autogen.gating import make_gate

        gate = make_gate(rm, "attach", options)
        gated, found = _Walk().part(gate, x)
        if found:
            return gated
        raise _refusal(x)


adapter = AutoGenAdapter()


class _Walk:
    """Visits what an object holds, each agent, team and tool once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # the objects too, so that no id is used again

    def part(self, gate: Gate, x: Any) -> tuple[Any, bool]:
        """The gated equivalent, and whether anything was there to be gated."""
        from autogen_core.models import ChatCompletionClient
        from autogen_core.tools import BaseTool, FunctionTool, Workbench

        if isinstance(x, ChatCompletionClient):
            return self._client(gate, x), True
        if isinstance(x, Workbench):
            from agentrm_autogen.workbench import gate_workbench

            self._inside(gate, getattr(x, "_tools", ()))
            return gate_workbench(gate, x), True
        if type(x) in (list, tuple):
            parts = [self.part(gate, part) for part in x]
            return type(x)(new for new, _ in parts), any(found for _, found in parts)
        if type(x) is dict:
            named = {key: self.part(gate, part) for key, part in x.items()}
            return {key: new for key, (new, _) in named.items()}, any(found for _, found in named.values())
        if isinstance(x, BaseTool) and not isinstance(x, FunctionTool):
            self._inside(gate, vars(x).values())  # the agent or team that the tool runs; its own run is its workbench's
            return x, False
        return x, self._container(gate, x)

    def _client(self, gate: Gate, client: Any) -> Any:
        """The client gated; of a client that asks another one (a cache), the other one: what it answers itself costs
        nothing."""
        from autogen_core.models import ChatCompletionClient

        from agentrm_autogen.client import GatedClient, gate_client

        held = {name: x for name, x in vars(client).items() if isinstance(x, ChatCompletionClient)}
        if isinstance(client, GatedClient) or not held:
            return gate_client(gate, client)
        outer = object.__new__(type(client))
        vars(outer).update(vars(client), **{name: self._client(gate, x) for name, x in held.items()})
        return outer

    def _inside(self, gate: Gate, parts: Any) -> None:
        for part in parts:
            self._container(gate, part)

    def _container(self, gate: Gate, x: Any) -> bool:
        """Changes an agent or a team in place."""
        from autogen_agentchat.base import ChatAgent, Team

        if not isinstance(x, (ChatAgent, Team)):
            return False
        if id(x) in self._seen:
            return True
        self._seen[id(x)] = x
        gate = _of_team(gate, x) if isinstance(x, Team) else gate.naming(agent=x.name)
        for name, value in list(vars(x).items()):
            new, found = self.part(gate, value)
            if found and new is not value:
                setattr(x, name, new)
        return True


def _of_team(gate: Gate, team: Any) -> Gate:
    """A team and those inside it are one conversation. Where its runtime is shared, who asks it is remembered."""
    from agentrm_autogen.gating import Caller

    if gate.named.session is None:
        gate = gate.naming(session=getattr(team, "_team_id", None))
    if getattr(team, "_embedded_runtime", True):
        return gate
    caller, outer, native = Caller(), gate.caller, team.run_stream

    @functools.wraps(native)
    def run_stream(*args: Any, **kwargs: Any) -> Any:
        caller.remember(outer)
        return native(*args, **kwargs)

    team.run_stream = run_stream
    return gate.naming(caller)


def _refusal(x: Any) -> AttachError:
    from autogen_core.tools import BaseTool

    if isinstance(x, BaseTool):
        why = "a tool of AutoGen is run by a workbench"
        instead = "workbench = rm.attach(StaticStreamWorkbench([tool]))  # or rm.attach(agent), which has the tool"
        return AttachError(x, why, instead)
    if hasattr(x, "add_message") and hasattr(x, "get_messages"):
        why = "a model context makes no calls"
        return AttachError(x, why, "AssistantAgent(..., model_context=CompactingContext(max_tokens))")
    why = "it holds no model client and no workbench that could be gated"
    return AttachError(x, why, "rm.attach(agent)  # or the team, the model client, the workbench")
