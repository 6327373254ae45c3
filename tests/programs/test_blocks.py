"""Memory in blocks: what counts is what an engine that hands out whole blocks would have to hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrm.programs import Prefix, ProgramScheduler, ProgramSettings, Ticket
from agentrm.programs.residency import BackendState


def scheduler(blocks: int, size: int, **options: object) -> ProgramScheduler:
    made = ProgramScheduler(ProgramSettings(**options))  # type: ignore[arg-type]
    made.set_backend("b0", blocks * size, 0.0, prefill_tokens_per_s=100.0, block_tokens=size)
    return made


def held(backend: BackendState) -> set[tuple[object, ...]]:
    """The blocks of the residents, one by one, without the shared ones: each is one program's context where that fills
    it, or one running turn's."""
    found: set[tuple[object, ...]] = set()
    for program in backend.residents.values():
        size, context = backend.block, program.context_tokens
        shared = 0 if program.prefix is None else round(program._ratio * program.prefix.tokens) // size
        full = [n for n in range(context // size) if n >= shared]
        found.update((program.id, n) for n in full)
        for ticket in program._tickets:
            if ticket.state == "granted":
                written = [n for n in range((context + ticket._counted + size - 1) // size) if n >= shared]
                found.update((program.id, n) if n in full else (program.id, ticket.seq, n) for n in written)
    return found


def shared(backend: BackendState) -> int:
    """The most blocks of each prefix that one of the residents fills."""
    most: dict[str, int] = {}
    for program in backend.residents.values():
        if program.prefix is not None:
            filled = round(program._ratio * program.prefix.tokens) // backend.block
            most[program.prefix.key] = max(most.get(program.prefix.key, 0), filled)
    return sum(most.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 8, 16]), st.booleans())
def test_what_counts_is_the_blocks_that_an_engine_would_hold(number: int, size: int, common: bool) -> None:
    rng = random.Random(number)
    s = scheduler(800 // size, size, patience_s=5.0, residence_s=5.0, idle_ttl_s=500.0)
    backend = s.backends["b0"]
    live: dict[str, list[Ticket]] = {}
    now = 0.0
    for _ in range(120):
        now += rng.random() * 3
        name = f"p{rng.randrange(8)}"
        tickets = [t for t in live.get(name, []) if t.state != "done"]
        running = [t for t in tickets if t.state == "granted"]
        step = rng.random()
        if step < 0.5:
            prefix = Prefix("s" if common else name, 50)
            tickets.append(s.request(name, rng.randrange(50, 250), now, prefix=prefix, max_output_tokens=30))
        elif running and step < 0.6:
            s.progress(running[0], now, rng.randrange(60))
        elif running and step < 0.85:
            s.settle(running[0], now, input_tokens=rng.randrange(50, 250), output_tokens=rng.randrange(300))
        elif tickets and step < 0.9:
            s.cancel(rng.choice(tickets), now)
        elif running and step < 0.93:
            s.requeue(running[0], now)
        elif step < 0.97:
            s.end(name, now)
        else:
            size = rng.choice([1, 2, 8, 16])
            s.set_backend("b0", 800, now, prefill_tokens_per_s=100.0, block_tokens=size)
        live[name] = tickets
        s.tick(now)
        s.take()
        assert backend.private == size * len(held(backend))
        assert backend.shared >= size * shared(backend), "what one of several is corrected by may leave more counted"
        assert common or backend.shared == size * shared(backend)
        assert backend.capacity == 800 // size * size
        idle = all(not p.running for p in backend.residents.values())
        assert not idle or backend.used <= backend.capacity or len(backend.residents) == 1
    for name in list(s.programs):
        s.end(name, now)
    assert (backend.used, backend.prefixes) == (0, {})


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([16, 128]))
def test_turns_that_were_let_in_together_find_blocks_for_all_that_they_were_expected_to_write(
    number: int, size: int
) -> None:
    """By tokens they would fit too often: the last block of each is only begun."""
    rng = random.Random(number)
    s = scheduler(40, size, admit=1.0)
    free = 40
    for n in range(60):
        tokens, output = rng.randrange(1, 6 * size), rng.randrange(2 * size)
        if s.request(f"p{n}", tokens, 0.0, max_output_tokens=output).state == "granted":
            free -= -(-(tokens + min(output, s._ledger.turn_tokens.expect(f"p{n}"))) // size)
    assert 0 <= free < 10, "and little is left over"


def test_between_turns_only_full_blocks_count() -> None:
    s = scheduler(10, 128)
    turn = s.request("p", 300, 0.0, max_output_tokens=8)
    assert s.backends["b0"].used == 3 * 128
    s.settle(turn, 1.0, input_tokens=300, output_tokens=8)
    assert s.backends["b0"].used == 2 * 128
    again = s.request("p", 380, 2.0, max_output_tokens=8)
    assert (again.warm_tokens, s.backends["b0"].used) == (256, 4 * 128)


def test_the_block_in_which_prefixes_part_is_each_programs_own() -> None:
    s = scheduler(100, 128)
    for name in ("a", "b", "c"):
        s.request(name, 400, 0.0, prefix=Prefix("system", 200), max_output_tokens=0)
    backend = s.backends["b0"]
    assert (backend.shared, backend.private) == (128, 3 * 3 * 128)


def test_a_prefix_that_was_guessed_too_long_is_corrected_with_the_prompt() -> None:
    s = scheduler(1_000, 16)
    for name in ("a", "b"):
        turn = s.request(name, 2_000, 0.0, prefix=Prefix("system", 1_000), max_output_tokens=0)
        s.settle(turn, 1.0, input_tokens=1_000, output_tokens=0)
    assert s.backends["b0"].used >= 496 + 2 * 500, "of each 1,000 tokens only 500 are the other's too"


def test_blocks_that_cannot_be_are_refused() -> None:
    for wrong in (0, -1, 1_001):
        with pytest.raises(ValueError, match="block_tokens"):
            ProgramScheduler().set_backend("b", 1_000, 0.0, block_tokens=wrong)
