"""Limits and memory at an admission: taken whole, saved up for the first, holding up nobody without need."""

from __future__ import annotations

import random

from agentrm.core._agentrm_core import lib

from agentrm.core.kernel import Limit, Pool
from tests.core.kernels import DONE, FAILED, MS, REFUND, RESUMED, TRY, kernel, running, waiting, who


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
