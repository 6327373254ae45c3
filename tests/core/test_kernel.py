"""What the kernel promises, said directly: one statement a test."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agentrm.core._agentrm_core import lib

from agentrm.core.kernel import Kernel, KernelConfig, Limit, Pool, handle_index
from agentrm.errors import ForkedError, KernelError

MS = 1_000_000
SMALL: dict[str, Any] = {"tickets": 64, "agents": 16, "tenants": 8, "scopes": 8, "owners": 4, "events": 64}
DONE, FAILED, REFUND = 0, 1, 2
RESUMED, TRY = 1, 2


def who(agent: int = 0, *, pool: int = 0, klass: int = 0, flags: int = 0, scope: int = 7) -> int:
    return pool | klass << 10 | flags << 12 | (agent & 0xFFFFFF) << 16 | scope << 40 | (agent >> 36) << 52


def kernel(*pools: Pool, limits: tuple[Limit, ...] = (), shared: bool = False, **more: Any) -> Kernel:
    k = Kernel(KernelConfig(pools=pools or (Pool(1),), limits=limits, shared=shared, **(SMALL | more)))
    k.agent("agent", k.tenant("tenant"))
    return k


def running(k: Kernel, now: int = 0, *args: Any, tokens: int = 0, **more: Any) -> int:
    rc = k.submit(who(*args, **more), tokens, now)
    assert rc > 0 and rc & 1, f"not granted at once: {rc}"
    return rc >> 1


def waiting(k: Kernel, now: int = 0, *args: Any, tokens: int = 0, **more: Any) -> int:
    rc = k.submit(who(*args, **more), tokens, now)
    assert rc > 0 and not rc & 1, f"does not wait: {rc}"
    return rc >> 1


# --- generations ---


def test_a_late_settle_of_an_ended_lease_leaves_the_slots_next_user_alone() -> None:
    k = kernel(Pool(2))
    old = running(k)
    k.settle(old, DONE, 1)
    new = running(k)
    assert handle_index(new) == handle_index(old) and new != old
    assert k.settle(old, DONE, 2) == lib.ARM_E_STALE
    assert k.cancel(old, 2) == k.reap(old, 2) == k.heartbeat(old, 2) == lib.ARM_E_STALE
    assert k.ticket(new).state == lib.ARM_RUNNING and k.pool_info(0).used == 1


def test_a_lease_is_settled_once() -> None:
    k = kernel(Pool(2))
    h = running(k)
    assert [k.settle(h, DONE, 1) for _ in range(3)] == [0, lib.ARM_E_STALE, lib.ARM_E_STALE]
    assert k.pool_info(0).used == 0


def test_a_cancel_that_comes_after_the_grant_says_that_it_runs() -> None:
    k = kernel()
    first, second = running(k), waiting(k)
    k.settle(first, DONE, 1)
    assert k.granted() == [second]
    assert k.cancel(second, 2) == lib.ARM_E_STATE
    assert k.settle(second, REFUND, 3) == 0


def test_a_cancelled_ticket_is_never_granted_and_the_next_one_is() -> None:
    k = kernel()
    first, gone, third = running(k), waiting(k), waiting(k)
    assert k.cancel(gone, 1) == 0
    k.settle(first, DONE, 2)
    assert k.granted() == [third]
    assert k.cancel(gone, 3) == lib.ARM_E_STALE


def test_a_heartbeat_of_an_old_lease_does_not_keep_the_new_one_alive() -> None:
    k = kernel()
    old = running(k)
    k.settle(old, DONE, 1)
    k.io.req.idle_us = 1000
    new = running(k, 1 * MS)
    assert k.heartbeat(old, 90 * MS) == lib.ARM_E_STALE
    assert list(k.overdue(100 * MS)) == [(new, "idle")]


def test_a_heartbeat_that_arrives_late_does_not_set_the_time_back() -> None:
    k = kernel()
    k.io.req.idle_us = 1000
    h = running(k)
    k.heartbeat(h, 10 * MS)
    k.heartbeat(h, 5 * MS)
    assert k.ticket(h).heartbeat_ns == 10 * MS
    assert list(k.overdue(10 * MS + 999_000)) == []
    assert list(k.overdue(11 * MS)) == [(h, "idle")]


# --- sweep, reap, zombies ---


def test_sweep_tells_the_silent_from_the_slow_and_leaves_the_others() -> None:
    k = kernel(Pool(4))
    k.io.req.idle_us = 1000
    silent = running(k)
    k.io.req.run_us = 2000
    slow = running(k)
    running(k)
    k.heartbeat(slow, 3 * MS)
    assert set(k.overdue(3 * MS)) == {(silent, "idle"), (slow, "run")}


def test_one_that_waits_for_its_child_is_not_idle() -> None:
    k = kernel(Pool(2))
    k.io.req.idle_us = 1000
    parent = running(k)
    k.io.req.parent = parent
    child = running(k)
    assert list(k.overdue(9 * MS)) == []
    k.settle(child, DONE, 9 * MS)
    assert list(k.overdue(9 * MS + 500_000)) == [], "its own idle time starts when the child ends"
    assert list(k.overdue(10 * MS)) == [(parent, "idle")]


def test_a_reap_frees_the_lane_at_once_within_the_bound_of_zombies() -> None:
    k = kernel(Pool(1, zombies=1))
    hung, second, third = running(k), waiting(k), waiting(k)
    k.reap(hung, 1)
    assert k.granted() == [second] and k.pool_info(0).dead == 1
    k.reap(second, 2)
    assert k.granted() == [], "the second zombie keeps the lane busy"
    assert k.settle(hung, FAILED, 3) == 1 and k.granted() == [third]
    assert k.pool_info(0).dead == 1


def test_no_zombies_allowed_keeps_the_lane_until_the_work_ends() -> None:
    k = kernel(Pool(1, zombies=0))
    hung, second = running(k), waiting(k)
    assert k.reap(hung, 1) == 0
    assert k.settle(hung, FAILED, 2) == 1 and k.granted() == [second]


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


# --- try ---


def test_a_try_takes_a_free_lane() -> None:
    k = kernel()
    running(k, flags=TRY)


def test_a_try_that_cannot_run_now_leaves_nothing_behind() -> None:
    k = kernel(Pool(1, (0,)), limits=(Limit("tokens", "bucket", 1000, 1.0, 100),))
    k.settle(running(k, tokens=100), DONE | 100 << 2, 0)
    assert k.submit(who(flags=TRY), 50, 0) == lib.ARM_E_QUEUE
    assert k.next_due_ns() == 50 * MS, "when it would have run"
    assert k.pool_info(0).waiting == 0
    running(k, 50 * MS, flags=TRY, tokens=50)


# --- limits ---


def test_a_gauge_is_taken_whole_and_given_back_whole() -> None:
    k = kernel(Pool(8, (0,)), limits=(Limit("memory", "gauge", 100),))
    k.io.req.memory = 60
    first = running(k)
    k.io.req.memory = 60
    second = waiting(k)
    assert k.limit_info(0, 0).level == 40
    k.settle(first, FAILED, 1)
    assert k.granted() == [second] and k.limit_info(0, 1).level == 40
    k.settle(second, REFUND, 2)
    assert k.limit_info(0, 2).level == 100
    k.io.req.memory = 101
    assert k.submit(who(), 0, 3) == lib.ARM_E_TOO_LARGE and k.io.which_limit == 0


def test_no_rolling_window_holds_more_than_its_amount() -> None:
    k = kernel(Pool(64, (0,)), limits=(Limit("requests", "rolling", 5, 0.01),), tickets=512)
    rng = random.Random(11)
    now, at = 0, []
    for _ in range(400):
        now += rng.randrange(0, 3_000_000)
        if k.submit(who(flags=TRY), 0, now) > 0:
            at.append(now)
        for t in list(k.tickets()):
            k.settle(t.handle, DONE, now)
    assert len(at) > 50
    assert all(sum(x - 10 * MS < y <= x for y in at) <= 5 for x in at)


def test_whoever_saves_up_but_is_not_first_any_more_holds_up_nobody() -> None:
    """Two tickets that each wait for what is saved for the other would wait for ever."""
    limits = (Limit("requests", "rolling", 2, 0.1), Limit("tokens", "bucket", 10_000, 1.0, 100))
    k = kernel(Pool(4, (0, 1)), limits=limits, backfill_passes=0)
    light = k.agent("light", 0)
    for _ in range(2):
        k.settle(running(k, 0, tokens=50), DONE | 50 << 2, 0)
    saver, front = waiting(k, 1, 0, tokens=100), waiting(k, 2, light, flags=RESUMED, tokens=1)
    k.advance(200 * MS)
    assert k.granted() == [front, saver] or k.advance(300 * MS) == 1 and k.granted() == [saver]
    assert k.pool_info(0).waiting == 0


def test_whoever_waits_for_memory_holds_up_no_rate() -> None:
    """The memory is another lease's, perhaps for ever; pools that share only the rate go on."""
    limits = (Limit("requests", "bucket", 5, 0.5, 1), Limit("memory", "gauge", 1000))
    k = kernel(Pool(4, (0, 1)), Pool(4, (0,)), limits=limits, backfill_passes=0)
    k.io.req.memory = 1000
    holder = running(k)
    k.io.req.memory = 1000
    large = waiting(k, 100 * MS)
    k.advance(250 * MS)  # a request is there again, and the patience of `large` is used up
    k.settle(running(k, 250 * MS, pool=1), DONE, 250 * MS)
    k.settle(holder, DONE, 400 * MS)
    assert k.granted() == [large]


def test_nor_does_one_whose_memory_is_there_but_saved_for_another() -> None:
    """What is saved goes to the other as soon as it can run: then this one waits for a lease like any other."""
    limits = (Limit("tokens", "bucket", 1000, 0.5, 1000), Limit("memory", "gauge", 100))
    k = kernel(Pool(4, (0, 1)), Pool(4, (0, 1)), Pool(4, (0,)), limits=limits, backfill_passes=0)
    k.io.req.memory = 50
    running(k, 0, tokens=1000)
    k.io.req.memory = 100
    waiting(k, 1 * MS)
    k.io.req.memory = 50
    waiting(k, 2 * MS, pool=1, tokens=900)
    running(k, 150 * MS, pool=2, tokens=10)


def test_memory_is_not_saved_from_a_call_that_a_lease_waits_for() -> None:
    k = kernel(Pool(4, (0,)), Pool(4, (0,)), limits=(Limit("memory", "gauge", 100),), backfill_passes=0)
    k.io.req.memory = 60
    outer = running(k)
    k.io.req.memory = 60
    other = waiting(k, MS)
    for pool in (0, 1):
        k.io.req.parent, k.io.req.memory = outer, 15
        assert running(k, 2 * MS, pool=pool), "else `outer` would wait for `other`, which waits for `outer`"
    k.io.req.memory = 15
    assert waiting(k, 3 * MS), "which nobody waits for: the memory is saved"
    k.settle(outer, DONE, 4 * MS)
    assert k.granted() == [other]


# --- several participants ---


def pair(*pools: Pool, **more: Any) -> tuple[Kernel, Kernel]:
    config = KernelConfig(pools=pools or (Pool(1),), shared=True, **(SMALL | more))
    memory = mmap.mmap(-1, 1 << 22)
    one = Kernel(config, memory)
    one.agent("agent", one.tenant("tenant"))
    return one, Kernel(None, memory, attach=True)


def test_a_grant_goes_to_the_mailbox_of_its_owner() -> None:
    one, two = pair()
    held, wanted = running(one), waiting(two)
    assert one.settle(held, DONE, 1) == 0 and one.granted() == []
    assert [one.io.wake[i] for i in range(one.io.n_wake)] == [two.owner]
    assert two.poll() == 1 and two.granted() == [wanted]
    assert two.poll() == 0, "it is delivered once"


def test_a_grant_that_ended_before_it_was_fetched_is_not_delivered() -> None:
    one, two = pair()
    held, wanted = running(one), waiting(two)
    one.settle(held, DONE, 1)
    assert two.settle(wanted, REFUND, 2) == 0
    assert two.poll() == 0


def test_a_private_arena_has_one_participant() -> None:
    memory = mmap.mmap(-1, 1 << 22)
    Kernel(KernelConfig(pools=(Pool(1),), **SMALL), memory)
    with pytest.raises(KernelError, match="join"):
        Kernel(None, memory, attach=True)


def test_foreign_memory_is_refused() -> None:
    with pytest.raises(KernelError, match="no arena"):
        Kernel(None, mmap.mmap(-1, 1 << 22), attach=True)


CHILD = """
import mmap, sys
from agentrm.core.kernel import Kernel
f = open(sys.argv[1], "r+b")
k = Kernel(None, mmap.mmap(f.fileno(), 0), attach=True)
for _ in range(3):
    assert k.submit(7 << 40, 10, 0) > 0
print(k.owner, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_what_a_killed_process_held_and_waited_for_goes_to_those_that_live(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.write_bytes(b"\0" * (1 << 22))
    with path.open("r+b") as f:
        memory = mmap.mmap(f.fileno(), 0)
    config = KernelConfig(pools=(Pool(2),), shared=True, **SMALL)
    k = Kernel(config, memory)
    k.agent("agent", k.tenant("tenant"))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout and child.stdin
    slot = int(child.stdout.readline())
    assert (slot, child.pid) in [(s, pid) for s, pid, _ in k.owners()]
    mine = waiting(k, 1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert k.owner_dead(slot, child.pid + 1, 2) == 0, "another process's place"
    assert k.owner_dead(slot, child.pid, 2) >= 3
    assert k.granted() == [mine], "the dead one's waiting ticket got no lane"
    assert [t.handle for t in k.tickets()] == [mine]
    assert slot not in [s for s, _, _ in k.owners()]
    k.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_fork_the_child_is_refused_and_the_parent_goes_on() -> None:
    k = kernel()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            k.submit(who(), 0, 1)
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    running(k)


# --- events ---


def test_events_that_were_overwritten_are_counted_by_the_gap() -> None:
    k = kernel(Pool(1), events=8)
    for now in range(10):
        k.settle(running(k, now), DONE, now)
    events = k.events(0)
    assert k.event_head() == 30 and len(events) == 8
    assert [e.seq for e in events] == list(range(22, 30)), "22 were lost, and it shows"
    assert [e.kind for e in events[-3:]] == ["submit", "grant", "settle"]


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
