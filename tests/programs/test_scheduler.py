"""The scheduler of programs keeps its promises: bounded working set, no lost room, order, placement, failover."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrm.errors import ConfigError, QueueFull, RequestTooLarge
from agentrm.programs import Prefix, ProgramScheduler, ProgramSettings, Ticket
from agentrm.programs.room import yields


def scheduler(capacity: int = 100_000, backends: int = 1, **options: object) -> ProgramScheduler:
    made = ProgramScheduler(ProgramSettings(**options))  # type: ignore[arg-type]
    for i in range(backends):
        made.set_backend(f"b{i}", capacity, 0.0, prefill_tokens_per_s=100.0)
    return made


def turn(s: ProgramScheduler, name: str, tokens: int, now: float, output: int = 0, **options: object) -> Ticket:
    ticket = s.request(name, tokens, now, max_output_tokens=output, **options)  # type: ignore[arg-type]
    if ticket.state == "granted":
        s.settle(ticket, now, input_tokens=tokens, output_tokens=output)
    return ticket


def counts_are_exact(s: ProgramScheduler) -> None:
    for backend in s.backends.values():
        assert backend.private == sum(p._reserved for p in backend.residents.values())
        assert set(backend.pausable) == {p.id for p in backend.residents.values() if not p.running}
        assert backend.resting == sum(p._reserved for p in backend.pausable.values())
        assert backend.shared == sum(tokens for tokens, _ in backend.prefixes.values())
        assert all(p.status == "resident" and p.backend == backend.name for p in backend.residents.values())
        yielding = [yields(p) for p in backend.residents.values() if not p.running]
        assert all(backend.displaceable_at <= at and backend.lowest >= rank for at, rank in yielding)
        assert backend.running == sum(
            t.state == "granted" and t.backend == backend.name for p in s.programs.values() for t in p._tickets
        )
    assert all(p.running == sum(t.state == "granted" for t in p._tickets) for p in s.programs.values())
    assert s.statistics().waiting == sum(t.state == "waiting" for p in s.programs.values() for t in p._tickets)


def test_exact_use_replaces_the_estimate() -> None:
    s = scheduler()
    ticket = s.request("p", 1000, 0.0)
    s.settle(ticket, 1.0, input_tokens=1500, output_tokens=100)
    assert s.programs["p"].context_tokens == 1600 == s.backends["b0"].used
    again = s.request("p", 1200, 2.0)
    assert again.expected_tokens == 1500 + round(1.5 * 200)


def test_a_shared_prefix_counts_once() -> None:
    s = scheduler(100_000, admit=1.0)
    tickets = [s.request(f"p{i}", 21_000, 0.0, prefix=Prefix("system", 20_000), max_output_tokens=0) for i in range(80)]
    assert all(t.state == "granted" for t in tickets)
    assert s.backends["b0"].used == 20_000 + 80 * 1_000
    assert s.request("late", 21_001, 0.0, prefix=Prefix("system", 20_000), max_output_tokens=0).state == "waiting"


def test_what_cannot_fit_is_refused_and_what_would_wait_too_long_too() -> None:
    s = scheduler(10_000, max_waiting=2)
    with pytest.raises(RequestTooLarge, match="10000"):
        s.request("huge", 20_000, 0.0)
    assert [s.request(f"p{i}", 9_000, 0.0, max_output_tokens=0).state for i in range(3)] == ["granted"] + ["waiting"] * 2
    with pytest.raises(QueueFull) as full:
        s.request("p3", 9_000, 0.0)
    assert full.value.is_retryable and full.value.retry_after is not None and full.value.retry_after >= 1
    assert set(s.programs) == {"p0", "p1", "p2"}
    counts_are_exact(s)


def test_idle_programs_keep_their_room_until_it_is_needed() -> None:
    s = scheduler(10_000)
    for step in range(40):
        turn(s, f"p{step % 4}", 2_000, 0.25 * step)
    assert not s.take()
    late = s.request("p4", 3_000, 10.1, max_output_tokens=0)
    assert late.state == "waiting", "their next turns are near"
    s.request("p0", 5_000, 10.2, max_output_tokens=0)
    (pause,) = s.take().paused
    assert pause.program.id != "p0"
    assert pause.program.status == "paused"


def test_nobody_is_paused_twice_while_others_were_not() -> None:
    s = scheduler(10_000, admit=1.0)
    for i in range(4):
        turn(s, f"p{i}", 2_400, float(i))
    pauses = []
    for step in range(3):
        growing = s.request("p0", 2_900 + step * 10, 10.0 + step, max_output_tokens=0)
        s.settle(growing, 10.5 + step, input_tokens=2_400 + 500, output_tokens=0)
        pauses += [pause.program.id for pause in s.take().paused]
        for name in pauses[-1:]:
            turn(s, name, 2_400, 11.0 + step)
            s.take()
    assert len(set(pauses)) == len(pauses)


def test_a_backend_that_died_loses_its_programs_to_the_others() -> None:
    s = scheduler(50_000, backends=2)
    first = s.request("p", 10_000, 0.0)
    home = first.backend
    assert home is not None
    s.backend_down(home, 1.0)
    s.requeue(first, 1.0)
    assert first.state == "granted" and first.backend != home
    assert s.take().granted == (first,)
    s.settle(first, 2.0, input_tokens=10_000, output_tokens=100)
    counts_are_exact(s)


def test_it_resumes_where_it_is_warm_unless_that_backend_is_much_fuller() -> None:
    s = scheduler(100_000, backends=2)
    a = s.request("a", 10_000, 0.0, max_output_tokens=0)
    s.settle(a, 1.0, input_tokens=10_000, output_tokens=0)
    assert s.request("a", 10_500, 2.0, max_output_tokens=0).backend == a.backend


def test_tenants_share_by_weight_while_both_wait() -> None:
    s = scheduler(10_000, weights={"heavy": 3.0}, admit=1.0)
    running = s.request("first", 10_000, 0.0, max_output_tokens=0)
    for i in range(40):
        for tenant in ("light", "heavy"):
            s.request(f"{tenant}{i}", 10_000, 0.0, tenant=tenant, max_output_tokens=0)
    served = []
    for step in range(24):
        s.end(running.program.id, float(step))
        (running,) = s.take().granted
        served.append(running.program.tenant)
    assert served.count("heavy") == 18


def test_settings_that_cannot_work_are_refused_at_construction() -> None:
    for wrong in ({"max_waiting": 0}, {"admit": 1.1}, {"credit_s": 0.0}, {"patience_s": -1.0}, {"weights": {"t": 0.0}}):
        with pytest.raises(ConfigError):
            ProgramSettings(**wrong)  # type: ignore[arg-type]


def test_a_program_too_large_for_the_backend_runs_alone_when_the_others_can_make_way() -> None:
    """Of two that share a prefix neither frees all that the other lacks: the prefix stays."""
    s = scheduler(20_000)
    prefix = Prefix("s", 1_000)
    for name in ("a", "b"):
        first = s.request(name, 9_000, 0.0, prefix=prefix, max_output_tokens=0)
        s.settle(first, 1.0, input_tokens=9_000, output_tokens=10)
    large = s.request("a", 19_900, 2.0, max_output_tokens=500)
    assert large.state == "granted"


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
@example(5247, 1, True)
def test_whatever_happens_the_counts_are_exact_and_everybody_is_served(number: int, backends: int, shared: bool) -> None:
    rng = random.Random(number)
    s = scheduler(20_000, backends, patience_s=5.0, residence_s=5.0, idle_ttl_s=500.0)
    live: dict[str, list[Ticket]] = {}
    now = 0.0
    for _ in range(150):
        now += rng.random() * 3
        name = f"p{rng.randrange(12)}"
        tickets = [t for t in live.get(name, []) if t.state != "done"]
        running = [t for t in tickets if t.state == "granted"]
        step = rng.random()
        if step < 0.5:
            tokens = rng.randrange(1, 9_000)
            prefix = Prefix("s", 1_000) if shared else None
            tickets.append(s.request(name, tokens, now, prefix=prefix, priority=rng.choice(["interactive", "background"])))
        elif running and step < 0.75:
            s.progress(running[0], now, rng.randrange(2_000))
            s.settle(running[0], now, input_tokens=rng.randrange(1, 9_000), output_tokens=rng.randrange(500))
        elif tickets and step < 0.85:
            s.cancel(rng.choice(tickets), now)
        elif running and step < 0.9:
            s.requeue(running[0], now)
        elif step < 0.93:
            s.end(name, now)
        elif step < 0.96:
            s.backend_down(f"b{rng.randrange(backends)}", now)
        else:
            s.backend_up(f"b{rng.randrange(backends)}", now)
        live[name] = tickets
        s.tick(now)
        s.take()
        counts_are_exact(s)
    for i in range(backends):
        s.backend_up(f"b{i}", now)
    for _ in range(2_000):
        held = [t for p in s.programs.values() for t in p._tickets if t.state == "granted"]
        if not held and not s.statistics().waiting:
            break
        now += 1.0
        if held:
            s.settle(held[0], now, input_tokens=min(9_000, held[0].expected_tokens), output_tokens=10)
        s.tick(now)
        counts_are_exact(s)
    assert not s.statistics().waiting, "somebody still waits although nobody runs"
    for backend in s.backends.values():
        assert backend.used <= backend.capacity or len(backend.residents) == 1
    for name in list(s.programs):
        s.end(name, now)
    counts_are_exact(s)
    assert all(b.used == 0 and b.running == 0 and b.backlog == 0 for b in s.backends.values())


def test_who_was_held_back_most_for_its_own_time_goes_first() -> None:
    s = scheduler(10_000, admit=1.0, patience_s=1e6, keep=1e6)
    first = s.request("first", 10_000, 0.0, max_output_tokens=0)
    long = s.request("long", 9_000, 0.0, max_output_tokens=0)
    s.end("first", 1.0)
    assert long.state == "granted", first
    s.settle(long, 1_000.0, input_tokens=9_000, output_tokens=0)
    s.request("blocks", 9_000, 1_000.0, priority="interactive", max_output_tokens=0)
    s.backend_down("b0", 1_001.0)
    again = s.request("long", 9_000, 1_001.0, max_output_tokens=0)
    short = s.request("short", 9_000, 1_001.0, max_output_tokens=0)
    s.end("blocks", 1_001.0)
    s.backend_up("b0", 1_100.0)
    assert (short.state, again.state) == ("granted", "waiting"), "a wait of 99 s is more for a program that has just begun"


def test_a_program_that_was_never_held_back_makes_room_for_one_that_was_for_long() -> None:
    s = scheduler(10_000, admit=1.0, unfair=1.5, credit_s=100.0, patience_s=1e6, keep=1e9)
    resident = s.request("resident", 9_000, 0.0, max_output_tokens=0)
    waiting = s.request("waiting", 9_000, 0.0, max_output_tokens=0)
    s.settle(resident, 140.0, input_tokens=9_000, output_tokens=0, tool="bash")
    s.tick(149.0)
    assert waiting.state == "waiting"
    s.tick(151.0)
    assert waiting.state == "granted"
    assert [pause.program.id for pause in s.take().paused] == ["resident"]


@pytest.mark.parametrize(("tokens", "passed"), [(1_000, 3), (2_000, 3), (8_000, 12)])
def test_the_more_of_a_backend_one_needs_the_more_may_pass_before_room_is_kept_for_it(tokens: int, passed: int) -> None:
    s = scheduler(32_000, admit=1.0, passes=3)
    assert s.request("runs", 32_000 - tokens + 500, 0.0, max_output_tokens=0).state == "granted"
    assert s.request("waits", tokens, 0.0, max_output_tokens=0).state == "waiting"
    granted = 0
    while turn(s, f"small{granted}", 100, 0.0).state == "done":
        s.end(f"small{granted}", 0.0)
        granted += 1
    assert granted == passed


def test_the_longest_idle_of_too_many_programs_is_forgotten_at_once() -> None:
    s = scheduler(1_000_000, max_idle=3)
    for i in range(5):
        turn(s, f"p{i}", 100, float(i))
    assert set(s.programs) == {"p2", "p3", "p4"} == set(s.backends["b0"].residents)
    assert [p.id for p in s.take().ended] == ["p0", "p1"]
    counts_are_exact(s)


@pytest.mark.parametrize("each", [1 << 30, 100])
def test_a_turn_takes_no_more_steps_however_many_programs_are_known(each: int) -> None:
    def steps(known: int) -> int:
        """Python calls in a turn of a new program and one of a known one, on a backend that is empty or full."""
        s = scheduler(each * known)
        for i in range(known):
            turn(s, f"p{i}", 100, float(i) / 1e3)
        s.take()
        now = known / 1e3
        count = 0

        def called(frame: object, event: str, arg: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(called)
        try:
            turn(s, "new", 100, now)
            turn(s, "p1", 100, now)
            s.take()
            s.next_due(now)
        finally:
            sys.setprofile(None)
        return count

    assert steps(4_000) <= 1.2 * steps(500)


def test_a_turn_that_waits_for_more_than_others_can_give_does_not_make_theirs_dearer() -> None:
    """It has waited for longer than its patience, so that all that are between turns would make room for it."""

    def steps(known: int) -> int:
        s = scheduler(100 * known, patience_s=900.0, idle_ttl_s=1e6, unfair=1e6, keep=1e9)
        running = s.request("running", 50 * known, 0.0, max_output_tokens=0)
        for i in range(known // 2 - 10):
            turn(s, f"p{i}", 100, float(i) / 1e3)
        now = known / 1e3
        waiting = s.request("large", 80 * known, now, max_output_tokens=0)
        now += 2_000
        turn(s, "p1", 100, now)
        count = 0

        def called(frame: object, event: str, arg: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(called)
        try:
            turn(s, "p2", 100, now + 1e-3)
        finally:
            sys.setprofile(None)
        assert (running.state, waiting.state) == ("granted", "waiting")
        s.end("running", now + 1.0)
        s.tick(now + 2.0)
        assert waiting.state == "granted", "when the one that runs has ended, the others make way"
        return count

    assert steps(4_000) <= 1.2 * steps(500)


def test_who_was_refused_on_a_look_that_is_out_of_date_is_looked_at_again_as_soon_as_that_may_be() -> None:
    s = scheduler(1_000, admit=1.0, patience_s=10.0, residence_s=0.0, unfair=1e6, keep=1e9)
    turn(s, "idle", 300, 0.0)
    running = s.request("runs", 500, 0.0, max_output_tokens=0)
    waiting = s.request("waits", 600, 0.0, max_output_tokens=0)
    s.tick(20.0)  # it may displace others by now, and the one that is between turns is too small
    now = 20.0 + 1e-6
    s.settle(running, now, input_tokens=500, output_tokens=0)
    due = s.next_due(now)
    assert due is not None and now < due <= 20.0 + 1e-3
    s.tick(due)
    assert waiting.state == "granted"
    assert s.next_due(due) == 1_800.0, "nobody waits: next when the first idle one is forgotten"


def test_a_look_in_vain_for_background_work_does_not_hold_up_interactive_work() -> None:
    s = scheduler(1_000, admit=1.0, patience_s=10.0, residence_s=1e6, unfair=1e6, keep=1e9)
    idle = s.request("idle", 300, 0.0, priority="background", max_output_tokens=0)
    s.settle(idle, 0.0, input_tokens=300, output_tokens=0)
    s.request("runs", 500, 0.0, max_output_tokens=0)
    low = s.request("low", 500, 0.0, priority="background", max_output_tokens=0)
    s.tick(20.0)
    high = s.request("high", 500, 20.0 + 1e-6, max_output_tokens=0)
    assert (low.state, high.state) == ("waiting", "granted")
