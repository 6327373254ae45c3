"""Does an agent go round in circles? Calls that repeat with the same results, alone or between two agents.

A call is its name, its arguments and its result: a result that changed is progress, so polling something that moves
is no loop. A cycle of up to four calls that was made `repeat` times in a row, with the same results each time, is
one: the agent is warned, and its next step on the same circle is refused. Anything else that it does lets it go on.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Call", "Circle", "LoopWatch", "fingerprint"]

LONGEST_CYCLE = 4
"""Calls; longer circles are left to the step limit and the budgets."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an agent is about to do: a tool call, a hand-off, a message. `arguments` is anything; mappings are
    compared whatever the order of their keys."""

    name: str
    arguments: Any = None
    agent: str = "default"


class Circle(NamedTuple):
    """`cycle`: the calls as (agent, name). `repeats`: how often it was gone round."""

    cycle: tuple[tuple[str, str], ...]
    repeats: int

    def __str__(self) -> str:
        agents = list(dict.fromkeys(agent for agent, _ in self.cycle))
        names = ", ".join(dict.fromkeys(name for _, name in self.cycle))
        who = f"agent {agents[0]!r} made"
        if len(agents) > 1:
            who = f"agents {' and '.join(map(repr, agents))} go back and forth with"
        return f"{who} {names} {self.repeats} times with the same arguments and the same results"


class _Step(NamedTuple):
    agent: str
    name: str
    asked: object
    got: object


class LoopWatch:
    """Watches one task: each agent's own calls, and those of all agents in their order, for circles between them."""

    def __init__(self, repeat: int) -> None:
        self._repeat = repeat
        self._own: dict[str, deque[_Step]] = {}
        self._all: deque[_Step] = deque(maxlen=repeat * LONGEST_CYCLE)
        self._stuck: dict[str, tuple[Circle, frozenset[object]]] = {}

    def again(self, call: Call) -> Circle | None:
        """The circle that this call would go on with, if its agent was found on one."""
        stuck = self._stuck.get(call.agent)
        if stuck is None:
            return None
        if _asked(call) in stuck[1]:
            return stuck[0]
        del self._stuck[call.agent]
        return None

    def made(self, call: Call, result: Any) -> Circle | None:
        """The circle that this call has just completed, if any; reported once."""
        step = _Step(call.agent, call.name, _asked(call), fingerprint(result))
        own = self._own.get(call.agent)
        if own is None:
            own = self._own[call.agent] = deque(maxlen=self._repeat * LONGEST_CYCLE)
        own.append(step)
        self._all.append(step)
        found = self._cycle(list(self._all), between_agents=True) or self._cycle(list(own), between_agents=False)
        if not found:
            return None
        circle = Circle(tuple((one.agent, one.name) for one in found), self._repeat)
        for agent in {one.agent for one in found}:
            self._stuck[agent] = (circle, frozenset(one.asked for one in found if one.agent == agent))
        return circle

    def forget(self, agent: str) -> None:
        """The agent ended."""
        self._own.pop(agent, None)
        self._stuck.pop(agent, None)

    def _cycle(self, steps: list[_Step], *, between_agents: bool) -> list[_Step] | None:
        for length in range(2 if between_agents else 1, LONGEST_CYCLE + 1):
            needed = length * self._repeat
            if len(steps) < needed:
                return None
            last = steps[-length:]
            if between_agents and len({one.agent for one in last}) < 2:
                continue
            if all(steps[-needed + i] == last[i % length] for i in range(needed)):
                return last
        return None


def _asked(call: Call) -> object:
    return fingerprint((call.name, call.arguments))


def fingerprint(value: Any) -> object:
    """The same for what reads the same: 16 bytes of a hash, so that large results are not kept. What can't be read
    (endless, too deep, an object that shows only its address or nothing at all) is like nothing else: a circle that is
    not found costs less than an answer."""
    try:
        text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, default=_shown)
    except Exception:  # noqa: BLE001 - whatever a `repr` of the user's raises
        return object()
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _shown(value: object) -> str:
    if type(value).__repr__ is object.__repr__:  # the address of one that is gone is used again
        raise ValueError("it shows only its address")
    return repr(value)


def _plain(value: Any) -> Any:
    """Mappings with text for keys; arguments that are JSON text as what they say."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return _plain(json.loads(value))
        except (ValueError, RecursionError):
            return value
    return value
