"""Dominant resource fairness at the kernel: shares follow weights, whatever the size and number of a tenant's calls."""

from __future__ import annotations

import random
from collections import Counter

import pytest

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
