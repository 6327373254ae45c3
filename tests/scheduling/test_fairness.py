"""Dominant resource fairness: shares follow weights, whatever the size and number of a tenant's calls."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest

from agentrm import ResourceManager, VirtualClock
from agentrm.core import Kernel, KernelConfig, Limit, Pool

LANES = 4
TOKENS = {"many": 100, "steady": 100, "large": 10_000}


class Backlog:
    """Tenants that always have calls waiting, served by lanes that each take one call a second."""

    def __init__(self, weights: dict[str, float], tokens: dict[str, int], depth: int) -> None:
        limit = Limit("tokens", "bucket", 1_000_000_000, 1.0, 1_000_000_000)
        # tokens weigh more than lane time
        pool = Pool(lanes=LANES, limits=(0,), max_queued=50_000, token_cost_q8=256 * 5000)
        self.kernel = Kernel(KernelConfig(limits=(limit,), pools=(pool,), tickets=50_000, events=0))
        self.scope = self.kernel.scope("default/*", 0)
        self.tokens, self.now = tokens, 10**9
        self.who: dict[str, int] = {}
        self.owner: dict[int, str] = {}
        self.running: list[int] = []
        self.granted: list[str] = []
        for name, weight in weights.items():
            agent = self.kernel.agent(name, self.kernel.tenant(name, weight))
            self.who[name] = 2 << 10 | agent << 16 | self.scope << 40
        for i in range(depth):
            for name in weights:
                if i < depth or name == "many":
                    self.submit(name)

    def submit(self, name: str) -> None:
        rc = self.kernel.submit(self.who[name], self.tokens[name], self.now)
        assert rc > 0
        self.owner[rc >> 1] = name
        if rc & 1:
            self.start([rc >> 1])
        self.start(self.kernel.granted())

    def start(self, handles: list[int]) -> None:
        self.running += handles
        self.granted += [self.owner[h] for h in handles]

    def serve(self, grants: int) -> list[str]:
        """The next `grants` grants, each ended call replaced by another of its tenant."""
        begin = len(self.granted)
        while len(self.granted) - begin < grants:
            self.now += 10**9 // LANES
            handle = self.running.pop(0)
            name = self.owner.pop(handle)
            self.kernel.settle(handle, self.tokens[name] << 2, self.now)
            self.start(self.kernel.granted())
            self.submit(name)
        return self.granted[begin : begin + grants]


@pytest.mark.parametrize(
    "weights",
    [
        {"many": 1, "steady": 1, "large": 1},
        {"many": 1, "steady": 2, "large": 1},
        {"many": 3, "steady": 1, "large": 2},
    ],
)
def test_shares_follow_the_weights_over_any_thousand_grants(weights: dict[str, float]) -> None:
    world = Backlog(weights, TOKENS, 200)
    world.serve(500)  # past the first uncontended calls
    grants = world.serve(6000)
    world.kernel.check()
    for start in range(0, 5000, 250):
        window = Counter(grants[start : start + 1000])
        work = {name: window[name] * TOKENS[name] for name in weights}
        total, largest = sum(work.values()), max(TOKENS.values())
        for name, weight in weights.items():
            fair = total * weight / sum(weights.values())
            assert abs(work[name] - fair) <= max(0.02 * total, largest), (start, name, work)


MEMORY = 1000
DONE, REFUND = 0, 2


class Holders:
    """Tenants that always have calls waiting in a pool whose memory is what runs short. A call takes about ten seconds, long
    beside the two for which smaller ones may pass a head that lacks memory."""

    def __init__(self, weights: dict[str, float], memory: dict[str, int], rng: random.Random, policy: str) -> None:
        pool = Pool(lanes=32, limits=(0,), max_queued=1000, policy=policy)
        self.kernel = Kernel(KernelConfig(limits=(Limit("memory", "gauge", MEMORY),), pools=(pool,), events=0))
        scope = self.kernel.scope("default/*", 0)
        self.memory, self.rng, self.now = memory, rng, 10**9
        self.owner: dict[int, str] = {}
        self.running: list[tuple[int, int]] = []
        self.granted: list[tuple[str, int]] = []  # whose call, and how long it holds its memory
        self.who = {}
        for name, weight in weights.items():
            self.who[name] = 2 << 10 | self.kernel.agent(name, self.kernel.tenant(name, weight)) << 16 | scope << 40
        for name in [*weights] * 50:
            self.submit(name)

    def submit(self, name: str) -> None:
        self.kernel.io.req.memory = self.memory[name]
        rc = self.kernel.submit(self.who[name], 1, self.now)
        assert rc > 0
        self.owner[rc >> 1] = name
        self.start(([rc >> 1] if rc & 1 else []) + self.kernel.granted())

    def start(self, handles: list[int]) -> None:
        for handle in handles:
            takes = int(self.rng.uniform(8, 12) * 1e9)
            heapq.heappush(self.running, (self.now + takes, handle))
            self.granted.append((self.owner[handle], takes))

    def serve(self, grants: int) -> list[tuple[str, int]]:
        """The next `grants` grants, each ended call replaced by another of its tenant."""
        begin = len(self.granted)
        while len(self.granted) - begin < grants:
            self.now, handle = heapq.heappop(self.running)
            name = self.owner.pop(handle)
            self.kernel.settle(handle, 1 << 2, self.now)
            self.start(self.kernel.granted())
            self.submit(name)
        return self.granted[begin : begin + grants]


@pytest.mark.parametrize("policy", ["mlfq", "drf"])
@pytest.mark.parametrize("weights", [{"little": 1, "some": 1, "most": 1}, {"little": 1, "some": 2, "most": 3}])
def test_memory_that_is_held_counts_like_any_other_resource(
    weights: dict[str, float], policy: str, rng: random.Random
) -> None:
    memory = {"little": 50, "some": 100, "most": 400}
    world = Holders(weights, memory, rng, policy)
    world.serve(500)
    grants = world.serve(4000)
    world.kernel.check()
    for start in range(0, 3000, 250):
        held = Counter[str]()
        for name, takes in grants[start : start + 1000]:
            held[name] += memory[name] * takes
        total, largest = sum(held.values()), max(memory.values()) * 12e9
        for name, weight in weights.items():
            fair = total * weight / sum(weights.values())
            assert abs(held[name] - fair) <= max(0.02 * total, largest), (start, name, held[name] / total)
    calls = Counter(name for name, _ in grants)
    assert calls["most"] < calls["some"] < calls["little"] or weights["most"] > 1


def test_what_a_zombie_holds_counts_until_it_ends() -> None:
    pool = Pool(lanes=4, limits=(0,))
    kernel = Kernel(KernelConfig(limits=(Limit("memory", "gauge", 100),), pools=(pool,), age_s=float("inf")))
    who = {x: 2 << 10 | kernel.agent(x, kernel.tenant(x)) << 16 | kernel.scope("default/*", 0) << 40 for x in "ab"}
    owner: dict[int, str] = {}

    def submit(name: str, memory: int, at_s: int) -> int:
        kernel.io.req.memory = memory
        handle = kernel.submit(who[name], 1, at_s * 10**9) >> 1
        owner[handle] = name
        return handle

    kernel.settle(submit("b", 50, 0), 1 << 2, 10**9)  # a call usually takes a second, of half of the memory
    ghost, other = submit("a", 50, 1), submit("b", 50, 1)
    kernel.reap(ghost, 2 * 10**9)
    for _ in range(8):
        submit("a", 50, 2)
        submit("b", 50, 2)
    running, order, now = [], [], 101
    for handle, outcome in ((ghost, DONE), (other, REFUND)):
        kernel.settle(handle, outcome | 1 << 2, now * 10**9)
        running += kernel.granted()
    while len(order) < 8:
        now += 1
        handle = running.pop(0)
        order.append(owner[handle])
        kernel.settle(handle, 1 << 2, now * 10**9)
        running += kernel.granted()
    assert order.count("a") <= 1  # it has had the memory for as long as a hundred calls would have


def test_the_statistics_say_which_share_of_a_tenant_is_the_largest() -> None:
    clock = VirtualClock()
    rm = ResourceManager(pools={"default": {"lanes": 8, "limits": [{"memory": 1000}]}}, clock=clock)
    for tenant, memory in (("holder", 600), ("caller", 10)):
        with rm.lease(tenant=tenant, memory=memory, tokens=1):
            clock.run_until(clock.elapsed + 10)
    tenants = rm.statistics().fairness["default"].tenants
    holder, caller = tenants["holder"], tenants["caller"]
    assert (holder.dominant, caller.dominant) == ("memory", "lanes")
    assert (holder.memory_byte_s, caller.memory_byte_s) == (6000.0, 100.0)
    assert holder.dominant_share == pytest.approx(0.6 / (0.6 + 1 / 8))


def test_a_tenant_with_a_thousand_calls_does_not_make_a_newcomer_wait_a_round() -> None:
    world = Backlog({"many": 1, "steady": 1}, {**TOKENS}, 500)
    world.serve(300)
    agent = world.kernel.agent("new", world.kernel.tenant("new", 1))
    world.who["new"], world.tokens["new"] = 2 << 10 | agent << 16 | world.scope << 40, 100
    for _ in range(30):
        world.submit("new")
    assert "new" in world.serve(3)
    counts = Counter(world.serve(60))
    assert 18 <= counts["new"] <= 22


def test_agents_of_one_tenant_share_it_evenly_whatever_they_queue(rng: random.Random) -> None:
    kernel = Kernel(KernelConfig(pools=(Pool(lanes=1, max_queued=10_000, token_cost_q8=256 * 1000),)))
    tenant, scope = kernel.tenant("t"), kernel.scope("default/*", 0)
    agents = [kernel.agent(f"agent{i}", tenant) for i in range(8)]
    names = {}
    order = [i for i in range(8) for _ in range(20 + 40 * i)]
    rng.shuffle(order)
    running = None
    for i in order:
        rc = kernel.submit(2 << 10 | agents[i] << 16 | scope << 40, 50, 10**9)
        names[rc >> 1] = i
        running = rc >> 1 if rc & 1 else running
    served: Counter[int] = Counter()
    now = 10**9
    for _ in range(8 * 19):
        now += 10**7
        kernel.settle(running, 50 << 2, now)
        (running,) = kernel.granted()
        served[names[running]] += 1
    assert max(served.values()) - min(served.values()) <= 2  # one round begun, and the first call, which met nobody
