"""Full tables, names and sizes: what is full says so and recovers, and many at once are as one."""

from __future__ import annotations

import pytest
from agentrm.core._agentrm_core import lib

from agentrm.core.kernel import Limit, Pool
from agentrm.errors import KernelError
from tests.core.kernels import DONE, MS, kernel, running, waiting, who

# --- full tables ---


def test_a_full_ticket_table_is_an_error_code_and_recovers() -> None:
    k = kernel(Pool(1), tickets=3)
    h = [running(k), waiting(k), waiting(k)]
    assert k.submit(who(), 0, 1) == lib.ARM_E_FULL
    k.settle(h[0], DONE, 2)
    waiting(k, 3)
    assert k.submit(who(), 0, 4) == lib.ARM_E_FULL
    k.check()


def test_a_full_queue_is_an_error_code_recovers_and_leaves_no_event() -> None:
    k = kernel(Pool(1, max_queued=2))
    h = [running(k), waiting(k), waiting(k)]
    head = k.event_head()
    assert k.submit(who(), 0, 1) == lib.ARM_E_QUEUE and k.event_head() == head
    k.cancel(h[2], 2)
    waiting(k, 3)


def test_full_name_tables_are_errors_and_the_known_names_still_work() -> None:
    k = kernel(tenants=2, scopes=2)
    assert k.tenant("second") == 1
    with pytest.raises(KernelError, match="full"):
        k.tenant("third")
    assert (k.scope("a"), k.scope("b"), k.tenant("tenant")) == (0, 1, 0)
    with pytest.raises(KernelError, match="full"):
        k.scope("c")


def test_more_agents_than_places_evict_the_one_not_seen_for_longest() -> None:
    k = kernel(agents=2)
    second = k.agent("second", 0)
    third = k.agent("third", 0)
    assert third & 0xFFFFFF == 0, "the first agent's place"
    assert k.submit(who(0), 0, 1) == lib.ARM_E_AGENT, "its old number is refused"
    assert k.settle(running(k, 2, third), DONE, 3) == 0
    assert k.settle(running(k, 4, second), DONE, 5) == 0
    assert k.name("agent", 0) == "third"


def test_an_agent_with_a_live_ticket_is_not_evicted() -> None:
    k = kernel(Pool(2), agents=2)
    second = k.agent("second", 0)
    running(k, 0, 0)
    running(k, 0, second)
    with pytest.raises(KernelError, match="full"):
        k.agent("third", 0)


@pytest.mark.parametrize("shared", (False, True))
def test_an_evicted_agents_flow_does_not_take_its_heir_into_the_old_tenant(shared: bool) -> None:
    k = kernel(agents=2, shared=shared)
    second, other_tenant = k.agent("second", 0), k.tenant("other")
    busy = running(k, 0, second)
    queued = [waiting(k, 0, 0, klass=klass) for klass in (0, 1)]
    for h in [busy, *queued]:
        k.settle(h, DONE, 1)
    k.agent("second", 0)
    heir = k.agent("heir", other_tenant)
    busy, first, last = running(k, 2, second), waiting(k, 3, heir), waiting(k, 4, second)
    k.settle(busy, DONE, 5)
    assert k.granted() == [first]
    k.settle(first, DONE, 6)
    assert k.granted() == [last]
    k.check()


@pytest.mark.parametrize("shared", (False, True))
def test_a_change_to_round_robin_keeps_an_agents_turns_apart_from_its_share(shared: bool) -> None:
    k = kernel(shared=shared)
    h = [running(k), waiting(k), waiting(k, klass=1)]
    k.set_policy(0, "rr")
    h.append(waiting(k))
    served = []
    for now in range(1, 5):
        k.settle(h[0], DONE, now)
        k.check()
        served += k.granted()
        h[0] = (k.granted() or [0])[0]
    assert sorted(served) == sorted(h[1:])


# --- names ---


def test_long_names_stay_apart_and_short_ones_come_back_whole() -> None:
    k = kernel()
    a, b = "n" * 59 + "é" + "a", "n" * 59 + "é" + "b"
    ids = {k.tenant(a), k.tenant(b), k.tenant("n" * 60)}
    assert len(ids) == 3 and k.tenant(a) in ids
    assert k.name("tenant", k.tenant("n" * 60)) == "n" * 60
    assert k.name("tenant", k.tenant("Zoë / 東京")) == "Zoë / 東京"


def test_names_may_hold_a_zero_byte_but_not_be_empty() -> None:
    k = kernel()
    assert k.agent("a\0b", 0) != k.agent("a", 0)
    with pytest.raises(KernelError):
        k.agent("", 0)


# --- size ---


@pytest.mark.parametrize("shared", (False, True))
def test_ten_thousand_tickets_leave_in_order_of_arrival(shared: bool) -> None:
    k = kernel(Pool(4), shared=shared, tickets=10_100)
    busy = [running(k) for _ in range(4)]
    queued = [waiting(k, now) for now in range(10_000)]
    served: list[int] = []
    for n in range(10_004):
        lane = busy.pop(0)
        assert k.settle(lane, DONE, 20_000 + n) == len(k.granted())
        served += k.granted()
        busy += k.granted()
    assert served == queued
    assert (k.pool_info(0).used, k.pool_info(0).waiting) == (0, 0)
    k.check()


def test_many_tickets_that_age_at_once_do_not_fill_the_log() -> None:
    k = kernel(Pool(50, (0,)), limits=(Limit("requests", "rolling", 50, 1.0),), shared=True, age_s=0.5,
               tickets=1024, agents=256, tenants=128)  # fmt: skip
    agents = [k.agent(f"a{i}", k.tenant(f"t{i % 100}")) for i in range(200)]
    busy = [running(k, 0, a) for a in agents[:50]]
    for a in agents:
        waiting(k, 0, a, klass=2)
    assert all(k.settle(h, DONE, 900 * MS) >= 0 for h in busy)
    assert k.advance(1100 * MS) == 50
    k.check()


def test_many_scopes_that_open_at_once_do_not_fill_the_log() -> None:
    k = kernel(Pool(2), shared=True, tickets=1024, agents=256, tenants=128, scopes=24)
    agents = [k.agent(f"a{i}", k.tenant(f"t{i % 100}")) for i in range(200)]
    scopes = [k.scope(f"model {i}", 0) for i in range(20)]
    busy = [running(k, 0, a, scope=23) for a in agents[:2]]
    for s in scopes:
        k.penalise(s, 10 * MS, False, 0, 1)
    for i, a in enumerate(agents):
        waiting(k, 2, a, klass=2, scope=scopes[i % 20])
    assert k.settle(busy[0], DONE, 3) == 0
    assert k.settle(busy[1], DONE, 11 * MS) == 2
    k.check()


def test_parked_tickets_keep_their_order_when_their_scope_closes_again() -> None:
    k = kernel(Pool(1))
    model, _ = k.scope("model", 0), k.scope("another", 0)
    busy = running(k, 0, scope=7)
    queued = [waiting(k, 1, scope=model) for _ in range(5)]
    k.penalise(model, 5 * MS, True, 0, 2)
    assert k.settle(busy, DONE, 3) == 0
    served: list[int] = []
    held, now, closed_again = running(k, 4, scope=7), 5 * MS, False
    while len(served) < 5 and now < 100_000 * MS:
        now += 100 * MS
        if len(served) == 2 and not closed_again:
            k.advance(now)  # the next one is back at the front already
            k.penalise(model, now + 50 * MS, True, now, now)
            closed_again = True
        k.settle(held, DONE, now)
        granted = k.granted()
        k.advance(now)
        granted += k.granted()
        served += granted
        held = (granted or [held])[0]
    assert served == queued
