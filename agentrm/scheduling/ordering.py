"""How a manager applies a policy that is not simply the kernel's: a custom one, or `auto`."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from agentrm.errors import AgentRMError
from agentrm.identity import PRIORITIES
from agentrm.scheduling.policies import AUTO, MOST_KEY, Auto, Choice, Policy, Request, Sight, Usage, load

if TYPE_CHECKING:
    from agentrm.scheduling.gate import Gate
    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Ordering", "ordering"]


class Ordering(Protocol):
    """What the gate asks of it."""

    def submit(self, asked: tuple[Any, ...], lease: Lease) -> int:
        """Submits to the kernel in the policy's way."""
        ...

    def used(self, lease: Lease, now_ns: int, tokens: int) -> None:
        """A call ended."""
        ...

    def look(self) -> None:
        """About once a second while anything runs or waits."""
        ...

    def choice(self, pool: str) -> Choice:
        """The policy in force in a pool, and why."""
        ...


def ordering(rm: ResourceManager, gate: Gate) -> Ordering | None:
    """None: the kernel's own policy needs nobody."""
    name = rm.config.scheduling.policy
    if name == AUTO:
        return _Automatic(rm, gate)
    policy = load(name)
    return None if policy is None else _Custom(policy, gate)


MOST_STATES = 65_536


class _Custom:
    """Asks the policy for level and key of each call; keeps its state per tenant and agent, of the 65,536 that were
    seen last."""

    def __init__(self, policy: Policy, gate: Gate) -> None:
        self._policy, self._gate = policy, gate
        self._states: OrderedDict[tuple[str, str], object] = OrderedDict()

    def submit(self, asked: tuple[Any, ...], lease: Lease) -> int:
        route = lease.route
        request = Request(
            route.agent, route.tenant, route.pool.name, PRIORITIES.index(route.priority), lease.tokens, asked[2] / 1e9
        )  # fmt: skip
        place = self._policy.place(request, self._states.get((route.tenant, route.agent)))
        level, key = place.level, place.key
        if type(level) is not int or not 0 <= level <= 2 or type(key) is not int or not 0 <= key <= MOST_KEY:
            raise AgentRMError(
                f"policy {self._policy.name!r} placed a call of agent {route.agent!r} at {place!r}; level must be 0 "
                f"to 2 and key a whole number from 0 to {MOST_KEY}"
            )
        return self._gate.port.submit_keyed(*asked, level, max(1, key))

    def used(self, lease: Lease, now_ns: int, tokens: int) -> None:
        who = (lease.tenant, lease.agent)
        usage = Usage((now_ns - lease.granted_ns) / 1e9, tokens)
        self._states[who] = self._policy.used(self._states.get(who), usage)
        self._states.move_to_end(who)
        if len(self._states) > MOST_STATES:
            self._states.popitem(last=False)

    def look(self) -> None:
        """A custom policy decides at submit and settle only."""

    def choice(self, pool: str) -> Choice:
        return Choice(self._policy.name, "configured")


class _Automatic:
    """Lets `Auto` choose for each pool."""

    def __init__(self, rm: ResourceManager, gate: Gate) -> None:
        self._rm, self._gate = rm, gate
        self._of_pool: dict[str, Auto] = {}

    def submit(self, asked: tuple[Any, ...], lease: Lease) -> int:
        pool, interactive = lease.route.pool, lease.route.priority == "interactive"
        if self._auto(pool.name).counts_at_once(interactive):
            info = self._rm.kernel.pool_info(pool.index)
            if info.used >= info.lanes:  # it will have to wait
                self._set(pool.name, Sight(int(interactive), info.waiting + (not interactive), 1, 1))
        return self._gate.port.submit(*asked)

    def used(self, lease: Lease, now_ns: int, tokens: int) -> None:
        """Nothing to learn from a single call."""

    def _auto(self, pool: str) -> Auto:
        return self._of_pool.setdefault(pool, Auto())

    def _set(self, pool: str, seen: Sight) -> None:
        auto = self._auto(pool)
        before = auto.choice.policy
        choice = auto.look(seen)
        if choice.policy != before:
            self._rm.kernel.set_policy(self._rm.pools[pool].index, choice.policy)

    def look(self) -> None:
        waiting: dict[str, dict[str, int]] = {pool: {} for pool in self._rm.pools}
        interactive: dict[str, int] = dict.fromkeys(self._rm.pools, 0)
        for lease in list(self._gate.queued.values()):
            route = lease.route
            agents = waiting[route.pool.name]
            agents[route.agent] = agents.get(route.agent, 0) + 1
            interactive[route.pool.name] += route.priority == "interactive"
        for pool, agents in waiting.items():
            total, first = sum(agents.values()), interactive[pool]
            self._set(pool, Sight(first, total - first, len(agents), max(agents.values(), default=0)))

    def choice(self, pool: str) -> Choice:
        return self._auto(pool).choice
