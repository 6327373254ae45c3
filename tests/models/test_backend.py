"""A local engine under the scheduler of programs, and whose KV goes first when memory runs short."""

from __future__ import annotations

from agentrm import ResourceManager, identity
from agentrm.clock import VirtualClock
from agentrm.models import LocalBackend
from agentrm.programs import ProgramScheduler
from tests.models.test_engine import BLOCK, TOKEN_BYTES, engine_with, text_of


async def test_what_the_scheduler_pauses_is_swapped_out_and_comes_back_with_its_next_turn() -> None:
    with engine_with() as engine:
        backend = LocalBackend(engine)
        scheduler = ProgramScheduler()
        scheduler.set_backend(backend.name, 400, 0.0, prefill_tokens_per_s=100.0)

        def turn(name: str, text: str, now: float) -> None:
            ticket = scheduler.request(name, len(text), now, max_output_tokens=8)
            assert ticket.state == "granted"
            text_of(engine.generate(text, max_new_tokens=8, program=backend.program(name)))
            scheduler.settle(ticket, now, input_tokens=len(text), output_tokens=8)

        turn("a", "a" * 250, 0.0)
        turn("b", "b" * 250, 5000.0)
        (paused,) = scheduler.take().paused
        assert paused.program.id == "a"
        before = await backend.signals()
        assert await backend.pause(paused.program.id)
        after = await backend.signals()
        assert before.kv_used is not None and after.kv_used is not None and after.kv_used < before.kv_used
        assert engine.statistics()[0].swapped_out == 1
        turn("a", "a" * 250 + "x" * 5, 10_000.0)
        assert engine.statistics()[0].swapped_in == 1
        assert not await backend.pause("never heard of")
        for name in "ab":
            await backend.forget(name)
        assert await backend.flush()
        ended = engine.statistics()[0]
        assert (ended.used_blocks, ended.cached_blocks, ended.swapped_bytes) == (0, 0, 0)
    assert not (await backend.signals()).healthy


def test_a_program_in_a_turn_is_not_swapped_out() -> None:
    with engine_with() as engine, engine.program() as program:
        running = engine.generate("I am " * 18, max_new_tokens=3000, program=program)
        next(running)
        assert not program.swap_out()
        running.close()
        assert program.swap_out()


def test_the_program_whose_next_turn_is_farthest_away_goes_first() -> None:
    """Both have been idle for the same time; one is used to short pauses, the other one to long ones. Being used last
    would say the opposite."""
    clock = VirtualClock()
    rm = ResourceManager(pools={"local": {"lanes": 2}}, clock=clock)
    with engine_with(manager=rm, memory=12 * BLOCK * TOKEN_BYTES) as engine:
        quick, slow = engine.program("quick"), engine.program("slow")

        def turn(program: object, letter: str) -> None:
            text_of(engine.generate(letter * 3 * BLOCK, max_new_tokens=1, program=program))  # type: ignore[arg-type]

        for _ in range(8):
            for _ in range(3):
                turn(quick, "q")
                clock.advance(1.0)
            turn(slow, "s")
            clock.advance(1.0)
        turn(quick, "q")
        turn(slow, "s")
        clock.advance(0.5)
        text_of(engine.generate("z" * 8 * BLOCK, max_new_tokens=1))
        assert slow.place[1].saved is not None
        assert quick.place[1].saved is None


def test_a_background_program_goes_before_an_interactive_one() -> None:
    with engine_with(memory=12 * BLOCK * TOKEN_BYTES) as engine:
        person, indexer = engine.program("person"), engine.program("indexer")
        for program, priority in ((person, "interactive"), (indexer, "background")):
            with identity(agent=program.name, priority=priority):  # type: ignore[arg-type]
                text_of(engine.generate(program.name[0] * 3 * BLOCK, max_new_tokens=1, program=program))
        text_of(engine.generate("z" * 8 * BLOCK, max_new_tokens=1))
        assert indexer.place[1].saved is not None
        assert person.place[1].saved is None
