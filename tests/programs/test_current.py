"""Calls know which program they belong to."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentrm import ResourceManager
from agentrm.programs import current_program
from agentrm.programs.current import CurrentProgram


def test_calls_inside_belong_to_the_program_and_the_inner_one_counts() -> None:
    rm = ResourceManager()
    assert current_program() is None
    with rm.program("outer"):
        assert current_program() == "outer"
        with pytest.raises(KeyError), rm.program("inner"):
            assert current_program() == "inner"
            raise KeyError
        assert current_program() == "outer"
    assert current_program() is None


async def test_tasks_inherit_it_and_do_not_mix() -> None:
    rm = ResourceManager()

    async def work(name: str) -> str | None:
        async with rm.program(name):
            await asyncio.sleep(0)
            return await asyncio.create_task(inner())

    async def inner() -> str | None:
        return current_program()

    assert await asyncio.gather(*(work(f"p{i}") for i in range(5))) == [f"p{i}" for i in range(5)]


def test_a_program_has_an_id() -> None:
    with pytest.raises(ValueError, match="id"):
        ResourceManager().program("")


async def test_leaving_one_in_a_loop_lets_the_loop_go_on() -> None:
    go, seen = threading.Event(), []
    async with CurrentProgram("p", lambda _: seen.append(go.wait(10))):
        asyncio.get_running_loop().call_soon(go.set)
    assert seen == [True]


async def test_a_task_that_is_cancelled_while_it_leaves_one_leaves_it_all_the_same() -> None:
    leaving, go, ended = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def end(program: str) -> None:
        loop.call_soon_threadsafe(leaving.set)
        go.wait(10)
        ended.append(program)

    async def work() -> None:
        async with CurrentProgram("p", end):
            pass

    task = asyncio.create_task(work())
    await leaving.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    await asyncio.wait({task})
    assert task.cancelled() and ended == ["p"]
