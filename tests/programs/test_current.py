"""Calls know which program they belong to."""

from __future__ import annotations

import asyncio

import pytest

from agentrm import ResourceManager
from agentrm.programs import current_program


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
