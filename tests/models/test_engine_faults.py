"""What breaks an engine, or tries to: faults inside, forks, closing while others run, calls from many threads at once."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import agentrm
from agentrm.errors import ConfigError, ForkedError
from agentrm.models import EngineClosed, GenerationCancelled, LocalEngine, ProgramBusy
from tests.models.test_engine import BLOCK, SEED, TOKEN_BYTES, engine_with, prompts, text_of, together

ASK = "I am " * 18


@pytest.fixture
def quiet_threads(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The fault of a loop goes on to `threading.excepthook`: it is expected here."""
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: told.set())
    return told


def test_a_fault_while_a_call_ends_reaches_every_caller_and_frees_every_program(
    quiet_threads: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rm = agentrm.ResourceManager(pools={"local": {"lanes": 2}})
    engine = engine_with(manager=rm, slice_tokens=None)
    loop = engine._loops[0]
    program = engine.program()
    calls = [engine.generate(ASK, max_new_tokens=3000, program=program)]
    calls += [engine.generate(ASK, max_new_tokens=3000) for _ in range(4)]
    loop.ask(lambda: [one._begin() for one in calls])
    next(calls[0])

    def broken(*_: object) -> None:
        raise RuntimeError("the account is broken")

    monkeypatch.setattr(loop.store, "drop", broken)
    loop.post(lambda: loop._stop(calls[1]._call, None))
    for call in calls:
        with pytest.raises((RuntimeError, EngineClosed)):
            text_of(call)
    assert not program.busy
    with pytest.raises(EngineClosed):
        text_of(engine.generate(ASK))
    with pytest.raises(EngineClosed):
        engine.choose(ASK, ["x", "y"])
    assert quiet_threads.wait(60)
    monkeypatch.undo()
    state = rm.statistics().pools["local"]
    assert (state.in_use, state.waiting) == (0, 0)


def test_a_closed_engine_ends_calls_that_run_wait_or_pause() -> None:
    engine = engine_with(lanes=1, slice_tokens=None)
    program = engine.program()
    running = engine.generate(ASK, max_new_tokens=3000, program=program)
    next(running)
    waiting = [engine.generate(ASK, max_new_tokens=10) for _ in range(3)]
    paused = engine.generate(ASK, max_new_tokens=10)
    paused.pause()
    search = engine.beam_search(ASK, width=2, max_new_tokens=10)
    with ThreadPoolExecutor(6) as threads:
        ends = [threads.submit(text_of, one) for one in [running, *waiting, paused]]
        ends.append(threads.submit(lambda: str(search.result())))
        engine.close()
        for end in ends:
            assert isinstance(end.exception(60), EngineClosed)
    assert not program.busy
    assert engine.statistics()[0].calls == 0
    engine.close()


def test_two_engines_in_one_process_know_nothing_of_each_other() -> None:
    asked = prompts(8, SEED)
    expected = [text_of(engine_with(lanes=1).generate(ask, max_new_tokens=12)) for ask in asked]
    with engine_with(lanes=4) as one, engine_with(lanes=4, memory=20 * BLOCK * TOKEN_BYTES) as other:
        calls = [engine.generate(ask, max_new_tokens=12) for ask in asked for engine in (one, other)]
        assert together(calls)[::2] == expected
        one.close()
        assert text_of(other.generate(asked[0], max_new_tokens=12)) == expected[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_that_the_engine_is_its_parent_s() -> None:
    with engine_with() as engine, engine.program() as program:
        running = engine.generate(ASK, max_new_tokens=2000)
        next(running)
        tries: list[Any] = [
            lambda: next(running), running.pause, running.snapshot, engine.statistics,
            lambda: next(engine.generate(ASK)), lambda: engine.choose(ASK, ["x", "y"]),
            lambda: engine.beam_search(ASK).result(), lambda: next(engine.generate(ASK, program=program)),
        ]  # fmt: skip
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            refused = 0
            for attempt in tries:
                try:
                    attempt()
                except ForkedError as error:
                    refused += "child" in str(error)
                except BaseException:  # noqa: BLE001, S110 - counted by what is missing
                    pass
            engine.close()
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == len(tries)
        running.close()
        assert len(text_of(engine.generate(ASK, max_new_tokens=20, program=program))) > 0


def test_calls_that_end_at_every_stage_leave_nothing(seed: int) -> None:
    """Before the first token, in the queue, in a prompt's chunks, paused, frozen, half read, read to the end."""
    chance = random.Random(seed)
    rm = agentrm.ResourceManager(pools={"local": {"lanes": 3}})
    with engine_with(manager=rm, slice_tokens=2, memory=40 * BLOCK * TOKEN_BYTES) as engine:
        programs = [engine.program() for _ in range(4)]

        def one(number: int) -> None:
            local = random.Random(number)
            for _ in range(12):
                gone = threading.Event()
                program = local.choice([None, *programs])
                call = engine.generate(
                    "ab" * local.randint(1, 200), max_new_tokens=local.randint(1, 20), program=program,
                    cancelled=gone.is_set, temperature=local.choice([0.0, 1.0]), seed=local.randint(0, 9),
                )  # fmt: skip
                try:
                    for _ in range(local.randint(0, 4)):
                        step = local.randrange(6)
                        if step == 0:
                            call.pause()
                            call.resume()
                        elif step == 1:
                            call.snapshot(kv=local.random() < 0.5)
                        elif step == 2:
                            gone.set()
                        elif step == 3 and program is not None:
                            program.close()
                        else:
                            next(call, None)
                    if local.random() < 0.5:
                        text_of(call)
                    elif local.random() < 0.5:
                        call.close()
                except ProgramBusy:
                    pass
                del call

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(one, [chance.randrange(1 << 30) for _ in range(6)]))
        for program in programs:
            program.close()
        loop = engine._loops[0]
        loop.ask(loop.store.pool.check)
        seen = engine.statistics()[0]
        assert (seen.calls, seen.waiting, seen.used_blocks, seen.swapped_bytes) == (0, 0, 0, 0)
        state = rm.statistics().pools["local"]
        assert (state.in_use, state.waiting) == (0, 0)
        assert text_of(engine.generate(ASK, max_new_tokens=9)) == text_of(engine_with().generate(ASK, max_new_tokens=9))


def test_closing_in_the_middle_of_everything_leaves_nobody_waiting(seed: int) -> None:
    engine = engine_with(lanes=2, slice_tokens=2)
    go = threading.Barrier(9)

    def one(number: int) -> None:
        local = random.Random(seed + number)
        go.wait()
        try:
            for _ in range(20):
                call = engine.generate("ab" * local.randint(1, 50), max_new_tokens=local.randint(1, 30))
                if local.random() < 0.3:
                    call.pause()
                    call.snapshot()
                    call.resume()
                text_of(call)
        except EngineClosed:
            pass

    with ThreadPoolExecutor(9) as threads:
        ends = [threads.submit(one, i) for i in range(8)]
        go.wait()
        threads.submit(engine.close).result(60)
        for end in ends:
            end.result(60)
    assert engine.statistics()[0].calls == 0


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"temperature": float("inf")}, "temperature"), ({"max_new_tokens": -5}, "max_new_tokens"),
        ({"max_new_tokens": 1.5}, "max_new_tokens"), ({"max_new_tokens": True}, "max_new_tokens"),
        ({"temperature": "hot"}, "temperature"), ({"seed": "s"}, "seed"),
        ({"seed": 1 << 70}, "seed"), ({"stop": [b"x"]}, "stop"), ({"stop": [None]}, "stop"),
        ({"stop": None}, "stop"),
    ],
)  # fmt: skip
def test_options_of_a_wrong_kind_are_refused_by_name(tiny: LocalEngine, wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        tiny.generate(ASK, **wrong)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"width": 1.5}, "width"), ({"width": True}, "width"), ({"length_penalty": float("inf")}, "length_penalty"),
        ({"length_penalty": float("nan")}, "length_penalty"), ({"length_penalty": 1e308}, "length_penalty"),
    ],
)  # fmt: skip
def test_a_search_that_has_no_meaning_is_refused(tiny: LocalEngine, wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        tiny.beam_search(ASK, **wrong)


@pytest.mark.parametrize("options", [None, [1], ["a", "a"], [""], []])
def test_options_that_are_no_texts_are_refused(tiny: LocalEngine, options: Any) -> None:
    with pytest.raises(ConfigError, match="options"):
        tiny.choose(ASK, options)


@pytest.mark.parametrize("prompt", ["half \ud83c", [{"role": "user", "content": "half \ud83c"}]])
def test_half_a_surrogate_pair_is_refused_by_name(tiny: LocalEngine, prompt: Any) -> None:
    with pytest.raises(ConfigError, match="surrogate"):
        tiny.generate(prompt)


@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 1e-9])
def test_next_to_no_temperature_writes_the_likeliest_tokens(tiny: LocalEngine, temperature: float) -> None:
    greedy = text_of(tiny.generate(ASK, max_new_tokens=12))
    assert text_of(tiny.generate(ASK, max_new_tokens=12, temperature=temperature, seed=1)) == greedy


def test_a_program_of_another_engine_is_refused(tiny: LocalEngine) -> None:
    with engine_with() as other, pytest.raises(ConfigError, match="program"):
        tiny.generate(ASK, program=other.program("of another one"))


def test_a_generation_that_was_left_before_it_began_stays_ended() -> None:
    with engine_with(lanes=1) as engine:
        left = engine.generate(ASK)
        left.close()
        assert (left.pause(), left.resume(), left.snapshot(), list(left)) == (False, False, None, [])
        assert len(list(engine.generate(ASK, max_new_tokens=3))) == 3  # the lane is free


def test_every_thread_that_reads_a_generation_hears_of_its_end(tiny: LocalEngine) -> None:
    pieces = list(tiny.generate(ASK, max_new_tokens=20))
    shared, read = tiny.generate(ASK, max_new_tokens=20), list[list[Any]]()
    threads = [threading.Thread(target=lambda: read.append(list(shared)), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(read) == 4 and sum(map(len, read)) == len(pieces)


def test_a_search_says_again_how_it_ended(tiny: LocalEngine) -> None:
    never_begun, cancelled = tiny.beam_search(ASK), tiny.beam_search(ASK, max_new_tokens=5, cancelled=lambda: True)
    never_begun.close()
    for search in (never_begun, cancelled):
        for _ in range(2):
            with pytest.raises(GenerationCancelled):
                search.result()
    found, best = list[Any](), tiny.beam_search(ASK, width=2, max_new_tokens=5)
    threads = [threading.Thread(target=lambda: found.append(best.result()), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [best.result()] * 3


def test_a_generation_that_two_threads_begin_begins_once() -> None:
    with engine_with() as engine:
        expected = text_of(engine.generate(ASK, max_new_tokens=8))
        generation = engine.generate(ASK, max_new_tokens=8)
        start, second = generation._start, threading.Thread(target=generation._begin)
        began: list[int] = []

        def begin(put: Any) -> None:
            began.append(1)
            if len(began) == 1:
                second.start()
            start(put)

        generation._start = begin
        assert text_of(generation) == expected
        second.join()
        assert began == [1]


def test_a_generation_that_is_collected_while_the_engine_s_thread_is_made_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Collecting may happen at any allocation, and posts to the engine."""
    real, made, heard = threading.Thread, list[threading.Thread](), list[str]()
    with engine_with() as engine:
        loop = engine._loops[0]

        def thread(*args: Any, **options: Any) -> threading.Thread:
            one = real(*args, **options)
            made.append(one)
            if len(made) == 1:
                loop.post(lambda: heard.append("collected"))
            return one

        monkeypatch.setattr("agentrm.models.engine.thread.threading.Thread", thread)
        asking = real(target=lambda: heard.append(str(loop.ask(lambda: 5))), daemon=True)
        asking.start()
        asking.join(20)
        assert sorted(heard) == ["5", "collected"]
        assert [one.ident is not None for one in made] == [False, True]


def test_a_shared_engine_that_was_closed_is_loaded_again() -> None:
    first = LocalEngine.shared("tiny-random", device="cpu", dtype="float16")
    first.close()
    again = LocalEngine.shared("tiny-random", device="cpu", dtype="float16")
    assert list(again.generate(ASK, max_new_tokens=1))[-1].usage is not None


def test_an_empty_prompt_is_refused_and_an_empty_message_is_none(tiny: LocalEngine) -> None:
    with pytest.raises(ConfigError, match="prompt"):
        tiny.generate("")
    assert list(tiny.generate([{"role": "user", "content": ""}], max_new_tokens=2))[-1].usage is not None


@pytest.mark.parametrize("wrong", [[{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": None}], 5])
def test_messages_of_a_wrong_shape_are_refused_at_the_call(tiny: LocalEngine, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="prompt"):
        tiny.generate(wrong)


def test_a_stop_string_is_found_across_tokens_that_are_parts_of_its_characters() -> None:
    """The toy's tokens are bytes: each of these characters comes as two to four of them."""
    from agentrm.models.generation import TextStream
    from agentrm.models.tokenizer import toy

    words = toy()
    text = "Grüße 🎉 nach Köln – fertig"
    for stop in ("ü", "🎉", "ße 🎉 n", "–", "g", "Köln – fertig"):
        stream, shown = TextStream(words, 1000, [stop]), ""
        for token in words.encode(text):
            shown += stream.take(token)
            if stream.reason is not None:
                break
        assert stream.reason == "stop"
        assert shown + stream.tail() == text[: text.index(stop)]
