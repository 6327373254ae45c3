"""KV outside its memory: what comes back is what went, and whatever the disk does nobody loses a token."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentrm.models.engine.swap_file import SwapFile
from tests.models.test_engine import BLOCK, TOKEN_BYTES, engine_with, text_of

KV_BYTES = 4 * BLOCK * TOKEN_BYTES


def pieces_of(data: bytearray, cuts: list[int]) -> list[list[memoryview]]:
    edges = [0, *cuts, len(data)]
    return [[memoryview(data)[a:b]] for a, b in zip(edges, edges[1:], strict=False)]


def test_what_is_read_is_what_was_written_however_the_memory_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    file = SwapFile(1 << 30)
    held: dict[Any, bytes] = {}
    for _ in range(300):
        if held and chance.random() < 0.4:
            entry = chance.choice(list(held))
            back = bytearray(entry.size)
            cuts = sorted(chance.sample(range(1, entry.size), k=min(3, entry.size - 1)))
            assert file.read(entry, pieces_of(back, cuts))
            assert bytes(back) == held.pop(entry)
            file.drop(entry)
        else:
            data = bytearray(chance.randbytes(chance.randint(2, 5000)))
            new = file.write(pieces_of(data, sorted(chance.sample(range(1, len(data)), k=1))))
            assert new is not None
            held[new] = bytes(data)
    assert all(file.read(entry, [[memoryview(bytearray(entry.size))]]) for entry in held)
    file.close()


def test_more_places_than_one_system_call_takes_are_written_and_read() -> None:
    file = SwapFile(1 << 20)
    data = bytearray(os.urandom(5000))
    entry = file.write([[memoryview(data)[i : i + 1] for i in range(len(data))]])
    assert entry is not None
    back = bytearray(len(data))
    assert file.read(entry, [[memoryview(back)[i : i + 1] for i in range(len(data))]])
    assert back == data


def test_the_file_never_grows_beyond_its_limit() -> None:
    file = SwapFile(1000)
    entries = [file.write([[memoryview(bytes(250))]]) for _ in range(5)]
    assert [entry is not None for entry in entries] == [True] * 4 + [False]
    for entry in (entries[0], entries[2]):
        assert entry is not None
        file.drop(entry)
    assert file.write([[memoryview(bytes(400))]]) is None  # 500 bytes are free, but not in one place
    assert os.fstat(file._open()).st_size <= 1000


@contextmanager
def a_small_disk(size: int) -> Iterator[None]:
    """Files of this process can't be longer: the system writes what fits and then refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_in_the_middle_of_an_entry_is_no_error() -> None:
    file = SwapFile(1 << 20)
    kept = file.write([[memoryview(bytes(3000))]])
    with a_small_disk(4096):
        assert file.write([[memoryview(bytes(3000))]]) is None
        assert file.write([[memoryview(bytes(1000))]]) is not None
    assert kept is not None and file.read(kept, [[memoryview(bytearray(3000))]])


def swap_file(engine: Any) -> SwapFile:
    found: SwapFile = engine._loops[0].store.swap._file
    return found


def on_a_full_disk(file: SwapFile) -> None:
    file.close()
    file._file = os.open("/dev/full", os.O_RDWR)


def torn(file: SwapFile) -> None:
    os.ftruncate(file._open(), os.fstat(file._open()).st_size // 2)


def overwritten(file: SwapFile) -> None:
    os.pwrite(file._open(), b"\x00\x01" * (KV_BYTES // 8), KV_BYTES // 2)


def gone(file: SwapFile) -> None:
    file.close()
    file._file = os.open(os.devnull, os.O_RDONLY)


def unreadable(file: SwapFile) -> None:
    file.close()
    file._file = os.open(os.devnull, os.O_WRONLY)


@pytest.mark.parametrize("fate", [on_a_full_disk, torn, overwritten, gone, unreadable])
def test_whatever_happens_to_the_disk_programs_write_what_they_would_have_written(
    fate: Callable[[SwapFile], None],
) -> None:
    with engine_with(memory=12 * BLOCK * TOKEN_BYTES, lanes=2) as engine:
        texts = [chr(97 + i) * 4 * BLOCK for i in range(6)]
        expected = [text_of(engine_with().generate(text + "x" * i, max_new_tokens=8)) for i, text in enumerate(texts)]
        programs = [engine.program() for _ in texts]
        for program, text in zip(programs, texts, strict=True):
            text_of(engine.generate(text, max_new_tokens=8, program=program))
        assert engine.statistics()[0].swapped_out >= 3
        engine._loops[0].ask(lambda: fate(swap_file(engine)))
        turns = [
            text_of(engine.generate(text + "x" * i, max_new_tokens=8, program=program))
            for i, (program, text) in enumerate(zip(programs, texts, strict=True))
        ]
        assert turns == expected
        others = [text_of(engine.generate(text + "x" * i, max_new_tokens=8)) for i, text in enumerate(texts)]
        assert others == expected  # nobody finds the lost blocks by their hashes
        seen = engine.statistics()[0]
        assert seen.dropped > 0
        for program in programs:
            program.close()
        assert engine.statistics()[0].swapped_bytes == engine.statistics()[0].used_blocks == 0
        engine._loops[0].ask(engine._loops[0].store.pool.check)


def test_a_beam_search_whose_beams_are_lost_finds_the_same_answers() -> None:
    with engine_with() as alone:
        expected = alone.beam_search("I am " * 18, width=3, max_new_tokens=12).result()
    with engine_with(lanes=2) as engine:
        search = engine.beam_search("I am " * 18, width=3, max_new_tokens=12)
        search.pause()
        loop = engine._loops[0]
        loop.ask(lambda: [loop.store.save(chain) for chain in search._call.chains])
        loop.ask(lambda: os.ftruncate(swap_file(engine)._open(), 0))
        search.resume()
        found = search.result()
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]


def test_a_call_may_use_the_memory_to_its_last_token() -> None:
    with engine_with(memory=4 * BLOCK * TOKEN_BYTES) as engine:
        pieces = list(engine.generate("a" * 100))
        assert pieces[-1].usage is not None and pieces[-1].usage.input_tokens + pieces[-1].usage.output_tokens == 128
        assert text_of(pieces) == text_of(engine_with().generate("a" * 100, max_new_tokens=28))
