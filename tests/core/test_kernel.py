"""What the kernel promises of a ticket, said directly: one statement a test."""

from __future__ import annotations

from agentrm.core._agentrm_core import lib

from agentrm.core.kernel import Limit, Pool, handle_index
from tests.core.kernels import DONE, FAILED, MS, REFUND, TRY, kernel, running, waiting, who

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


# --- events ---


def test_events_that_were_overwritten_are_counted_by_the_gap() -> None:
    k = kernel(Pool(1), events=8)
    for now in range(10):
        k.settle(running(k, now), DONE, now)
    events = k.events(0)
    assert k.event_head() == 30 and len(events) == 8
    assert [e.seq for e in events] == list(range(22, 30)), "22 were lost, and it shows"
    assert [e.kind for e in events[-3:]] == ["submit", "grant", "settle"]
