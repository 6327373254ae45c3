"""Many programs on one engine: what each writes is what it would write alone, whatever happens to its KV meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import agentrm
from agentrm.errors import ConfigError
from agentrm.models import EngineClosed, Generation, LocalEngine, OutOfBlocks, Piece, ProgramBusy, PromptTooLong

SEED = 3
"""Of the prompts. Sums depend in the last bits on how many programs a forward serves, so of prompts that are drawn anew some
would bring the random model to two tokens with the same score: once in about 15,000 tokens."""
BLOCK = 32
TOKEN_BYTES = 512  # of tiny-random: 2 layers of keys and values, 2 heads of 16 numbers in float32


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def engine_with(**options: Any) -> LocalEngine:
    pytest.importorskip("transformers")
    pytest.importorskip("torch").set_num_threads(1)
    return LocalEngine.load("tiny-random", device="cpu", **options)


def prompts(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices("abcdefgh ", k=chance.randint(5, 150))) for _ in range(count)]


def together(generations: Sequence[Generation]) -> list[str]:
    """Reads all of them at once, each in a thread of its own."""
    with ThreadPoolExecutor(len(generations)) as threads:
        return list(threads.map(text_of, generations))


@pytest.mark.parametrize("swap", ["disk", "memory", "none"])
def test_programs_in_too_little_memory_write_what_each_writes_alone(swap: str) -> None:
    alone = engine_with(lanes=1)
    asked = prompts(64, SEED)
    expected = [text_of(alone.generate(ask, max_new_tokens=16)) for ask in asked]
    memory = 16 * BLOCK * TOKEN_BYTES  # a call needs up to 6 of these 16 blocks
    with engine_with(lanes=8, slice_tokens=4, memory=memory, swap=swap) as engine:
        assert together([engine.generate(ask, max_new_tokens=16) for ask in asked]) == expected
        seen = engine.statistics()[0]
    assert seen.peak_blocks <= seen.blocks == 16
    assert seen.switches > 64
    assert (seen.dropped if swap == "none" else seen.swapped_in) > 0


def test_250_programs_write_what_each_writes_alone() -> None:
    alone = engine_with(lanes=1)
    asked = prompts(250, SEED)
    expected = [text_of(alone.generate(ask, max_new_tokens=6)) for ask in asked]
    with engine_with(lanes=32, slice_tokens=2, memory=100 * BLOCK * TOKEN_BYTES) as engine:
        assert together([engine.generate(ask, max_new_tokens=6) for ask in asked]) == expected


def test_sampling_with_a_seed_does_not_depend_on_who_else_is_there() -> None:
    alone = engine_with(lanes=1)
    asked = prompts(24, SEED)
    options = {"max_new_tokens": 16, "temperature": 0.8}
    expected = [text_of(alone.generate(ask, seed=i, **options)) for i, ask in enumerate(asked)]
    with engine_with(lanes=6, slice_tokens=4, memory=14 * BLOCK * TOKEN_BYTES) as engine:
        assert together([engine.generate(ask, seed=i, **options) for i, ask in enumerate(asked)]) == expected


def test_a_turn_computes_only_what_its_prompt_adds() -> None:
    with engine_with() as engine, engine.program("p") as program:
        first = list(engine.generate("a" * 200, max_new_tokens=10, program=program))
        said = "a" * 200 + text_of(first)
        before = engine.statistics()[0].fed_tokens
        turn = list(engine.generate(said.encode().decode() + "b" * 30, max_new_tokens=1, program=program))
        usage = turn[-1].usage
        assert usage is not None
        fed = engine.statistics()[0].fed_tokens - before
        assert fed == usage.input_tokens - usage.cached_tokens
        assert usage.cached_tokens >= 200
        assert text_of(turn) == text_of(engine.generate(said + "b" * 30, max_new_tokens=1))


def test_a_turn_that_takes_another_way_keeps_the_common_beginning() -> None:
    with engine_with() as engine, engine.program() as program:
        text_of(engine.generate("a" * 100, max_new_tokens=5, program=program))
        turn = list(engine.generate("a" * 77 + "b" * 50, max_new_tokens=5, program=program))
        assert text_of(turn) == text_of(engine_with().generate("a" * 77 + "b" * 50, max_new_tokens=5))
        assert turn[-1].usage is not None and turn[-1].usage.cached_tokens == 77
        again = list(engine.generate("a" * 77 + "b" * 50, max_new_tokens=5, program=program))
        assert text_of(again) == text_of(turn)
        assert again[-1].usage is not None and again[-1].usage.cached_tokens == 126


@pytest.mark.parametrize("kept", [0, 20])
def test_a_chain_that_leaves_its_first_shared_block_gets_another_place(kept: int) -> None:
    from agentrm.models.engine.store import Chain

    with engine_with() as engine:
        text_of(engine.generate("s" * 2 * BLOCK, max_new_tokens=1))
        loop = engine._loops[0]

        def places() -> tuple[list[tuple[int, int]], ...]:
            first, second = Chain(list(b"s" * 2 * BLOCK)), Chain(list(b"s" * 2 * BLOCK))
            for chain in (first, second):
                loop.store.adopt(chain)
            loop.store.truncate(second, kept)
            loop.store.prepare(second, BLOCK)
            found = tuple(loop.store.segments(chain, 0, BLOCK) for chain in (first, second))
            for chain in (first, second):
                loop.store.drop(chain)
            return found

        first, second = loop.ask(places)
        assert first != second


def test_the_next_turn_may_begin_as_soon_as_one_has_ended() -> None:
    with engine_with() as engine, engine.program() as program:
        for turn in range(50):
            text_of(engine.generate("a" * (turn + 1), max_new_tokens=2, program=program))
        busy = engine.generate("a", max_new_tokens=500, program=program)
        next(busy)
        with pytest.raises(ProgramBusy, match="one turn at a time"):
            next(engine.generate("b", program=program))
        busy.close()
        assert engine.choose("a", ["x", "y"], program=program) in "xy"


def test_a_closed_engine_and_a_call_that_can_never_fit_are_refused() -> None:
    engine = engine_with(memory=4 * BLOCK * TOKEN_BYTES)
    assert engine.context == 4 * BLOCK
    with pytest.raises(PromptTooLong, match="128"):
        engine.generate("x" * 200)
    with pytest.raises(OutOfBlocks, match="memory"):
        engine.beam_search("x" * 60, width=8, max_new_tokens=30)
    running = engine.generate("abc", max_new_tokens=100)
    next(running)
    engine.close()
    with pytest.raises(EngineClosed):
        text_of(running)
    with pytest.raises(EngineClosed):
        next(engine.generate("abc"))
    with pytest.raises(EngineClosed):
        engine.choose("abc", ["x", "y"])


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"memory": 100}, "memory"), ({"lanes": 0}, "lanes"), ({"slice_tokens": 0}, "slice_tokens"),
        ({"swap": "tape"}, "swap"), ({"swap_bytes": -1}, "swap_bytes"), ({"device": []}, "device"),
        ({"memory": float("inf")}, "memory"), ({"memory": "x"}, "memory"), ({"slice_tokens": 2.5}, "slice_tokens"),
        ({"swap_bytes": 1.5}, "swap_bytes"), ({"lanes": True}, "lanes"), ({"threads": 1.5}, "threads"),
    ],
)  # fmt: skip
def test_what_cannot_work_fails_at_construction(wrong: dict[str, Any], key: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match=key):
        LocalEngine.load("tiny-random", **({"device": "cpu"} | wrong))
    rm = agentrm.ResourceManager(pools={"gpu": {"lanes": 2}})
    with pytest.raises(ConfigError, match="pool"):
        engine_with(manager=rm)
    with pytest.raises(ConfigError, match="lanes"):
        engine_with(manager=rm, pool="gpu", lanes=3)


def test_a_loop_that_broke_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: told.set())
    engine = engine_with(lanes=1)
    engine._loops[0].post(lambda: 1 / 0)
    with pytest.raises(EngineClosed):
        text_of(engine.generate("a", max_new_tokens=1))
    assert engine.statistics()[0].calls == 0
    engine.close()
    assert told.wait(60)


def test_a_quota_of_blocks_stops_the_agent_that_it_binds_and_no_other() -> None:
    with engine_with() as engine:
        pool = engine._loops[0].store.pool
        pool.quota(2, agent=pool.account("greedy", "default"))
        with pytest.raises(agentrm.AgentRMError, match="quota"):
            text_of(asked_as(engine, "interactive", "greedy", "x" * 200, 5))
        assert text_of(asked_as(engine, "interactive", "modest", "x" * 200, 5))


def test_programs_spread_over_devices_and_stay_where_they_are() -> None:
    pytest.importorskip("transformers")
    with LocalEngine.load("tiny-random", device=["cpu", "cpu"]) as engine:
        expected = text_of(engine_with().generate("abc", max_new_tokens=20))
        long = engine.generate("xyz", max_new_tokens=1000)
        next(long)
        program = engine.program()
        assert text_of(engine.generate("abc", max_new_tokens=20, program=program)) == expected
        long.close()
        assert [state.fed_tokens > 0 for state in engine.statistics()] == [True, True]


def test_attention_gathered_as_on_a_gpu_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrm.models.engine import forward

    asked = prompts(8, SEED)
    expected = [text_of(engine_with(lanes=1).generate(ask, max_new_tokens=12)) for ask in asked]
    merged: list[bool] = []
    original = forward.Step

    def merging(arena: Any, spans: Any, places: Any, merge: bool = False) -> Any:
        merge = arena is not None and len(spans) == len(places)
        merged.append(merge)
        return original(arena, spans, places, merge)

    monkeypatch.setattr(forward, "Step", merging)
    with engine_with(lanes=8) as engine:
        assert together([engine.generate(ask, max_new_tokens=12) for ask in asked]) == expected
    assert sum(merged) > 5


def test_prompts_that_begin_alike_share_their_blocks() -> None:
    system = "s" * 10 * BLOCK
    with engine_with(lanes=8) as engine:
        text_of(engine.generate(system, max_new_tokens=1))
        programs = [engine.program() for _ in range(8)]
        for i, program in enumerate(programs):
            usage = list(engine.generate(f"{system}{i}", max_new_tokens=4, program=program))[-1].usage
            assert usage is not None and usage.cached_tokens == 10 * BLOCK
        assert engine.statistics()[0].used_blocks == 10 + 8
        for program in programs:
            program.close()
        assert engine.statistics()[0].used_blocks == 0


def test_programs_between_turns_are_swapped_out_for_others_and_come_back() -> None:
    with engine_with(memory=12 * BLOCK * TOKEN_BYTES) as engine:
        programs = [engine.program() for _ in range(6)]
        for _ in range(2):
            for i, program in enumerate(programs):
                text = chr(97 + i) * 4 * BLOCK
                turn = list(engine.generate(text, max_new_tokens=8, program=program))
                assert text_of(turn) == text_of(engine_with().generate(text, max_new_tokens=8))
        seen = engine.statistics()[0]
        assert seen.swapped_in >= 4
        assert seen.peak_blocks <= 12
        for program in programs:
            program.close()
        assert engine.statistics()[0].swapped_bytes == 0


class Watched:
    """Reads a generation in a thread and notes when it ended, in the order of the ends."""

    def __init__(self, name: str, generation: Generation, ends: list[str]) -> None:
        self.text = ""

        def read() -> None:
            self.text = text_of(generation)
            ends.append(name)

        self._thread = threading.Thread(target=read)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def asked_as(engine: LocalEngine, priority: Any, agent: str, text: str, count: int) -> Generation:
    with agentrm.identity(agent=agent, priority=priority):
        return engine.generate(text, max_new_tokens=count)


def test_a_long_generation_gives_way_to_a_person_and_goes_on_where_it_was() -> None:
    ends: list[str] = []
    with engine_with(lanes=1, slice_tokens=None) as engine:
        expected = text_of(engine.generate("indexing", max_new_tokens=1500))
        long = asked_as(engine, "background", "indexer", "indexing", 1500)
        next(long)
        background = Watched("background", long, ends)
        person = Watched("person", asked_as(engine, "interactive", "me", "hello", 5), ends)
        person.join()
        background.join()
        assert engine.statistics()[0].switches == 1
    assert ends == ["person", "background"]
    assert expected.endswith(background.text)
    assert person.text == text_of(engine_with().generate("hello", max_new_tokens=5))


def test_first_come_first_served_keeps_its_order_whatever_the_class() -> None:
    rm = agentrm.ResourceManager(pools={"local": {"lanes": 1}}, scheduling={"policy": "fifo"})
    ends: list[str] = []
    with engine_with(manager=rm, slice_tokens=None) as engine:
        long = asked_as(engine, "background", "indexer", "indexing", 300)
        next(long)
        watched = [
            Watched("background", long, ends), Watched("person", asked_as(engine, "interactive", "me", "hello", 5), ends)
        ]  # fmt: skip
        for one in watched:
            one.join()
        assert engine.statistics()[0].switches == 0
    assert ends == ["background", "person"]


def test_round_robin_slices_share_one_lane_evenly() -> None:
    rm = agentrm.ResourceManager(pools={"local": {"lanes": 1}}, scheduling={"policy": "rr"})
    progress: list[list[int]] = []
    calls: list[Generation] = []

    def look() -> bool:
        if not any(one._call.ended for one in calls):
            progress.append([one._call.written for one in calls])
        return False

    with engine_with(manager=rm, slice_tokens=10) as engine:
        for name in "xyz":
            with agentrm.identity(agent=name, priority="subagent"):
                calls.append(engine.generate(name * 20, max_new_tokens=60, cancelled=look))
        loop = engine._loops[0]
        loop.ask(lambda: [one._begin() for one in calls])
        together(calls)
    assert min(progress[-1]) >= 20
    assert max(max(counts) - min(counts) for counts in progress) <= 10


def test_the_kernel_hears_what_each_slice_used() -> None:
    rm = agentrm.ResourceManager(pools={"local": {"lanes": 1}})
    with engine_with(manager=rm, slice_tokens=10) as engine:
        with ThreadPoolExecutor(3) as threads:
            calls = [asked_as(engine, "subagent", name, name * 20, 50) for name in "xyz"]
            usages = [pieces[-1].usage for pieces in threads.map(list, calls)]
        assert engine.statistics()[0].switches >= 6
    pool = rm.statistics().pools["local"]
    assert pool.in_use == pool.waiting == 0
    assert rm.pools["local"].shares["default"].tokens == sum(
        usage.input_tokens + usage.output_tokens for usage in usages if usage is not None
    )  # fmt: skip
