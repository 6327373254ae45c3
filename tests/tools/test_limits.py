"""Tools beside each other: limits, conflict groups, exclusive tools, classes, nesting."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from agentrm import ConfigError, ResourceManager, WouldDeadlock
from agentrm.adapters import CallSpec, acall
from tests.scheduling.driver import Scene

TOOLS: dict[str, Any] = {
    "browser": {"concurrent": 2, "conflicts": ["screen"]},
    "desktop": {"conflicts": ["screen", "audio"]},
    "speak": {"conflicts": ["audio"]},
    "sql_*": {"concurrent": 3, "conflicts": ["database"]},
    "migrate": {"conflicts": ["database", "screen"]},
    "deploy": {"exclusive": True},
}
GROUPS = {"database": {"concurrent": 2}}


class Tools:
    """A scene that knows which tools run."""

    def __init__(self, **sections: Any) -> None:
        if "tools" in sections:
            sections.setdefault("conflict_groups", {})
        self.scene = Scene(**({"tools": TOOLS, "conflict_groups": GROUPS} | sections))
        self.running: list[str] = []
        self.seen: list[tuple[str, ...]] = []
        self.starts: list[tuple[str, float]] = []

    async def call(self, tool: str, seconds: float = 1.0, *, at: float = 0.0, name: str = "", **asked: Any) -> None:
        await asyncio.sleep(at - self.scene.clock.elapsed)
        async with self.scene.rm.lease(kind="tool", tool=tool, agent=name or tool, **asked):
            self.starts.append((name or tool, self.scene.now))
            self.running.append(tool)
            self.seen.append(tuple(sorted(self.running)))
            try:
                await asyncio.sleep(seconds)
            finally:
                self.running.remove(tool)

    def start_of(self, name: str) -> float:
        return dict(self.starts)[name]


def test_a_tool_runs_no_more_calls_at_once_than_its_limit() -> None:
    tools = Tools(tools={"fetch": {"concurrent": 3}})
    tools.scene.run_all(*(tools.call("fetch", name=f"a{i}") for i in range(10)))
    assert max(seen.count("fetch") for seen in tools.seen) == 3
    assert tools.scene.now == 4  # ten calls of a second, three at a time
    tools.scene.at_rest("default", "tools", "tools.fetch")


def test_two_calls_of_a_conflict_group_never_run_together_and_others_go_on() -> None:
    tools = Tools()
    tools.scene.run_all(tools.call("browser"), tools.call("desktop"), tools.call("browser"), tools.call("speak"))
    assert not any("browser" in seen and "desktop" in seen for seen in tools.seen)
    assert not any(seen.count("browser") > 1 for seen in tools.seen)  # the group binds its own calls too
    assert tools.start_of("speak") == 0.0
    tools.scene.at_rest()


def test_a_call_that_waits_for_one_of_its_groups_does_not_hold_the_other() -> None:
    tools = Tools(waiting={"backfill": {"max_s": 100}})
    tools.scene.run_all(
        tools.call("browser", 5), tools.call("desktop", at=1), tools.call("speak", at=2, seconds=1)
    )
    assert tools.start_of("speak") == 2.0  # the desktop waits for the screen, the audio is free
    assert tools.start_of("desktop") == 5.0


def test_a_call_of_two_groups_is_not_starved_by_calls_of_one() -> None:
    tools = Tools()
    browsing = [tools.call("browser", 1, at=i * 0.9, name=f"b{i}") for i in range(20)]
    talking = [tools.call("speak", 1, at=i * 0.9 + 0.45, name=f"s{i}") for i in range(20)]
    tools.scene.run_all(*browsing, *talking, tools.call("desktop", 1, at=1.0))
    assert tools.start_of("desktop") <= 1 + 2.0 + 2.0  # passed for two seconds (waiting.backfill), then two ends


def test_a_group_may_have_room_for_several() -> None:
    tools = Tools()
    tools.scene.run_all(*(tools.call(f"sql_{i}") for i in range(4)), tools.call("migrate"))
    assert max(len(seen) for seen in tools.seen) == 2


def test_an_exclusive_tool_runs_alone_and_nothing_begins_while_it_waits() -> None:
    tools = Tools()
    tools.scene.run_all(
        *(tools.call("speak" if i % 2 else "other", 1, at=i * 0.4, name=f"c{i}") for i in range(30)),
        tools.call("deploy", 3, at=1.0),
    )
    assert all(len(seen) == 1 for seen in tools.seen if "deploy" in seen)
    assert tools.start_of("deploy") <= 2.0  # as soon as those that ran have ended
    began_meanwhile = [name for name, at in tools.starts if 1.0 < at < tools.start_of("deploy")]
    assert began_meanwhile == []
    tools.scene.at_rest("tools", "tools.deploy")


def test_exclusive_calls_do_not_run_beside_each_other() -> None:
    tools = Tools(tools={"a": {"exclusive": True}, "b": {"exclusive": True}})
    tools.scene.run_all(*(tools.call("ab"[i % 2], name=f"c{i}") for i in range(6)))
    assert all(len(seen) == 1 for seen in tools.seen)
    assert tools.scene.now == 6


def test_waiting_tool_calls_are_served_by_class() -> None:
    tools = Tools(tools={"fetch": {"concurrent": 1}})
    tools.scene.run_all(
        tools.call("fetch", 1, name="first"),
        tools.call("fetch", 1, at=0.1, name="background", priority="background"),
        tools.call("fetch", 1, at=0.2, name="subagent", priority="subagent"),
        tools.call("fetch", 1, at=0.3, name="interactive", priority="interactive"),
    )
    assert [name for name, _ in tools.starts] == ["first", "interactive", "subagent", "background"]


def test_the_first_pattern_counts_and_other_tools_stay_in_the_common_pool() -> None:
    rm = ResourceManager(tools={"sql_read": {"concurrent": 5}, "sql_*": {"concurrent": 1}})
    asked = {"kind": "tool", "tool": "sql_read"}
    assert rm.lease(**asked).pool == rm.lease(**asked, pool="tools").pool == "tools.sql_read"
    assert rm.lease(kind="tool", tool="sql_drop").pool == "tools.sql_*"
    assert rm.lease(kind="tool", tool="grep").pool == "tools"
    assert rm.lease(kind="tool", tool="sql_drop", pool="default").pool == "default"
    assert rm.lease(kind="model", tool="sql_drop").pool == "default"


def test_a_gated_call_is_limited_by_its_name_alone() -> None:
    scene = Scene(tools={"fetch": {"concurrent": 2}})

    async def fetch() -> None:
        scene.enter("fetch")
        await asyncio.sleep(1)
        scene.leave("fetch")

    scene.run_all(*(acall(scene.rm, CallSpec(kind="tool", tool="fetch"), fetch) for _ in range(6)))
    assert scene.most_inside == 2


def test_work_that_could_not_be_stopped_keeps_its_group_until_it_ends() -> None:
    tools = Tools(reaper={"run_s": 5})
    rm = tools.scene.rm
    hung = rm.lease(kind="tool", tool="browser").acquire()
    tools.scene.clock.advance(10)
    assert hung.reaped
    assert rm.try_lease(kind="tool", tool="desktop") is None
    hung.release()
    assert rm.try_lease(kind="tool", tool="desktop") is not None


def test_a_nested_call_that_needs_what_its_enclosing_call_holds_is_refused() -> None:
    tools = Tools()

    async def nested(outer: str, inner: str) -> None:
        async with tools.scene.rm.lease(kind="tool", tool=outer):
            await tools.call(inner)

    clash, alone, fine = tools.scene.run_all(
        nested("browser", "desktop"), nested("deploy", "other"), nested("speak", "browser")
    )
    assert isinstance(clash, WouldDeadlock) and "tools.browser" in str(clash)
    assert isinstance(alone, WouldDeadlock)
    assert fine is None
    tools.scene.at_rest("tools", "tools.deploy")


def test_two_tools_whose_agents_call_each_other_do_not_wait_for_ever() -> None:
    tools = Tools(tools={"a": {"concurrent": 1}, "b": {"concurrent": 1}})

    async def nested(outer: str, inner: str) -> str:
        async with tools.scene.rm.lease(kind="tool", tool=outer):
            await asyncio.sleep(1)
            await tools.call(inner)
        return outer

    results = tools.scene.run_all(nested("a", "b"), nested("b", "a"))
    assert sum(isinstance(result, WouldDeadlock) for result in results) == 1  # the one that closes the circle
    assert sum(isinstance(result, str) for result in results) == 1
    tools.scene.at_rest("tools.a", "tools.b")


def test_random_calls_keep_every_rule_and_all_end(rng: random.Random) -> None:
    names = ["browser", "desktop", "speak", "sql_a", "sql_b", "migrate", "deploy", "other"]
    tools = Tools(pools={"tools": {"lanes": 2}})

    async def one(number: int) -> None:
        task = asyncio.ensure_future(
            tools.call(rng.choice(names), rng.choice([0.1, 1, 3]), at=rng.uniform(0, 60), name=f"c{number}",
                       priority=rng.choice(["interactive", "subagent", "background"]), tenant=rng.choice("xy"))
        )  # fmt: skip
        if rng.random() < 0.2:
            await asyncio.sleep(rng.uniform(0, 60))
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    tools.scene.run_all(*(one(i) for i in range(200)))
    groups = {"screen": ("browser", "desktop", "migrate"), "audio": ("desktop", "speak")}
    for seen in tools.seen:
        for members in groups.values():
            assert sum(seen.count(name) for name in members) <= 1, seen
        assert sum(seen.count(name) for name in ("sql_a", "sql_b", "migrate")) <= 2, seen
        assert "deploy" not in seen or len(seen) == 1, seen
        assert seen.count("other") <= 2
    assert len(tools.starts) >= 160
    tools.scene.at_rest("default", "tools", "tools.deploy")


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"tools": {"a": {"concurrent": 0}}}, "tools.a.concurrent"),
        ({"tools": {"a": {"conflicts": ["x", "x"]}}}, "tools.a.conflicts"),
        ({"tools": {"a": {"conflicts": list("uvwxyz")}}}, "tools.a.conflicts"),
        ({"tools": {"a": {"exclusive": "yes"}}}, "tools.a.exclusive"),
        ({"tools": {"a": {"exclusive": True, "concurrent": 2}}}, "tools.a.exclusive"),
        ({"tools": {"a": {"conflicts": ["screen"]}}, "conflict_groups": {"scren": {}}}, "conflict_groups.scren"),
        ({"tools": {"a": {}}, "pools": {"tools.a": {}}}, "pools.tools.a"),
        ({"tools": {f"t{i}": {"conflicts": ["x"]} for i in range(61)}}, "tools"),
    ],
)
def test_what_cannot_work_is_refused_by_its_key(sections: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ResourceManager(**sections)
    assert caught.value.key == key
