"""Each key of the configuration changes what the manager does."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from agentrm import ConfigError, IdleTimeout, QueueFull, QueueTimeout, RequestTooLarge, ResourceManager, RunTimeout
from agentrm.limits.headers import HeaderLimits, RateWindow
from tests.scheduling.driver import Scene, in_threads, until


@pytest.mark.parametrize("lanes", [1, 3, 7])
def test_lanes(lanes: int) -> None:
    scene = Scene(pools={"default": {"lanes": lanes}})
    scene.run_all(*(scene.call(f"c{i}") for i in range(20)))
    assert scene.most_inside == lanes


def test_pools_are_chosen_by_name_then_pattern_then_kind() -> None:
    scene = Scene(
        pools={"gpt": {"lanes": 1, "models": ["gpt-*"]}, "rest": {"lanes": 1, "models": ["*"]}, "memory": {"lanes": 1}}
    )

    def pool(**asked: str) -> str:
        return scene.rm.lease(**asked).pool  # type: ignore[arg-type]

    assert pool(model="gpt-5") == "gpt" and pool(model="claude") == "rest" and pool() == "default"
    assert pool(kind="tool") == "tools" and pool(kind="memory") == "memory" and pool(kind="storage") == "default"
    assert pool(model="gpt-5", pool="rest") == "rest"
    assert scene.rm.statistics().pools["tools"].lanes == 16


def test_a_kind_that_is_none_and_names_no_pool_is_refused() -> None:
    rm = ResourceManager(pools={"retrieval": {"lanes": 1}})
    assert rm.lease(kind="retrieval").pool == "retrieval"
    allowed = "model, tool, memory, storage, environment, or the name of a pool"
    for pool in (None, "tools"):
        with pytest.raises(ConfigError) as refused:
            rm.lease(kind="tol", pool=pool, tool="browser")
        assert (refused.value.key, refused.value.value, refused.value.allowed) == ("kind", "tol", allowed)


def test_pools_of_one_account_share_its_limits() -> None:
    scene = Scene(
        accounts={"x": {"limits": [{"requests": 3, "per": 60}]}},
        pools={"a": {"account": "x", "lanes": 4}, "b": {"account": "x", "lanes": 4}, "c": {"lanes": 4}},
    )
    scene.run_all(*(scene.call(f"{pool}{i}", pool=pool) for i in range(3) for pool in "abc"))
    at_once = [name for name, at in scene.started if at == 0]
    assert sorted(at_once) == ["a0", "a1", "b0", "c0", "c1", "c2"]
    assert sum(at >= 60 for _, at in scene.started) == 3


def test_a_limit_of_the_account_binds_beside_the_pools_own() -> None:
    scene = Scene(
        accounts={"x": {"limits": [{"requests": 4, "per": 60}]}},
        pools={
            "a": {"account": "x", "lanes": 9, "limits": [{"requests": 3, "per": 60}]},
            "b": {"account": "x", "lanes": 9},
        },
    )
    scene.run_all(
        *(scene.call(f"a{i}", pool="a") for i in range(5)), *(scene.call(f"b{i}", pool="b") for i in range(5))
    )
    at_once = [name[0] for name, at in scene.started if at == 0]
    assert at_once.count("a") == 3 and at_once.count("b") == 1


def test_memory_is_a_limit_of_what_runs_at_a_time() -> None:
    scene = Scene(pools={"default": {"lanes": 9, "limits": [{"memory": 1000}]}})
    scene.run_all(*(scene.call(f"c{i}", memory=400) for i in range(5)))
    assert scene.most_inside == 2
    with pytest.raises(RequestTooLarge):
        scene.rm.lease(memory=1001).acquire()
    scene.at_rest()


def test_shape_and_burst() -> None:
    for limit, first in (
        ({"requests": 10, "per": 60}, 10),
        ({"requests": 10, "per": 60, "shape": "bucket", "burst": 3}, 3),
    ):
        scene = Scene(pools={"default": {"lanes": 99, "limits": [limit]}})
        scene.run_all(*(scene.call(f"c{i}", 0) for i in range(20)))
        assert sum(at == 0 for _, at in scene.started) == first
    assert scene.started[3][1] == pytest.approx(6, abs=0.001)


def test_oversize_debt_lets_one_in_alone() -> None:
    scene = Scene(pools={"default": {"lanes": 9, "oversize": "debt", "limits": [{"tokens": 100, "per": 60}]}})
    scene.run_all(scene.call("big", 1, tokens=200), scene.call("small", 1, tokens=1))
    assert scene.start_of("small") == pytest.approx(60.6, abs=0.01)


def test_tenants_share_by_weight() -> None:
    scene = Scene(
        pools={"default": {"lanes": 1}}, tenants={"a": {"weight": 3}, "b": {"weight": 1}}, scheduling={"policy": "drf"}
    )
    scene.run_all(*(scene.call(f"{t}{i}", 1, tenant=t, agent=t) for i in range(60) for t in "ab"))
    first = [name[0] for name in scene.order[:40]]
    assert 28 <= first.count("a") <= 32


def arrivals(scene: Scene) -> list[str]:
    """Two agents of two classes, five calls each, all waiting behind one."""

    async def all_() -> None:
        holder = await scene.rm.lease(agent="holder").acquire_async()
        calls = []
        for i in range(5):
            for agent, priority in (("b", "background"), ("i", "interactive")):
                calls.append(asyncio.ensure_future(scene.call(f"{agent}{i}", 1, agent=agent, priority=priority)))
                await asyncio.sleep(0)
        holder.release()
        await asyncio.gather(*calls)

    scene.run(all_)
    return scene.order


def test_policies_by_name() -> None:
    orders = {}
    for policy in ("fifo", "rr", "priority", "mlfq", "drf"):
        orders[policy] = arrivals(Scene(pools={"default": {"lanes": 1}}, scheduling={"policy": policy}))
    by_arrival = [f"{a}{i}" for i in range(5) for a in "bi"]
    assert orders["fifo"] == by_arrival
    assert [x[0] for x in orders["rr"]] == ["b", "i"] * 5
    assert orders["priority"] == orders["mlfq"] == [f"{a}{i}" for a in "ib" for i in range(5)]
    assert sorted(orders["drf"]) == sorted(by_arrival)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scheduling\.policy"):
        ResourceManager(scheduling={"policy": "lottery"})


@pytest.mark.parametrize("key", ["quanta_s", "quanta_tokens"])
def test_an_agent_that_used_up_its_quantum_goes_down(key: str) -> None:
    quanta = {"quanta_s": [2, float("inf"), float("inf")], "quanta_tokens": [100, float("inf"), float("inf")]}
    off = {"quanta_s": [float("inf")] * 3, "quanta_tokens": [float("inf")] * 3}
    scene = Scene(pools={"default": {"lanes": 1}}, scheduling={**off, key: quanta[key], "boost_s": 10_000})

    async def all_() -> None:
        await scene.call("greedy0", 3, agent="greedy", use=200)
        holder = await scene.rm.lease(agent="holder").acquire_async()
        calls = [
            asyncio.ensure_future(scene.call("greedy1", 1, agent="greedy")),
            asyncio.ensure_future(scene.call("modest", 1, agent="modest")),
        ]
        await asyncio.sleep(0)
        assert [(x.agent, x.level) for x in scene.rm.snapshot().waiting] == [("greedy", 1), ("modest", 0)]
        holder.release()
        await asyncio.gather(*calls)

    scene.run(all_)
    assert scene.order == ["greedy0", "modest", "greedy1"]


def test_the_boost_lifts_back() -> None:
    scene = Scene(pools={"default": {"lanes": 1}}, scheduling={"quanta_s": [2, 2, float("inf")], "boost_s": 30})

    async def all_() -> None:
        await scene.call("greedy0", 3, agent="greedy")
        await asyncio.sleep(31)
        async with scene.rm.lease(agent="holder"):
            task = asyncio.ensure_future(scene.call("greedy1", 1, agent="greedy", parent=None))
            await asyncio.sleep(0)
            assert [x.level for x in scene.rm.snapshot().waiting] == [0]
        await task

    scene.run(all_)


@pytest.mark.parametrize(("passes", "passed"), [(0, 0), (4, 4)])
def test_backfill_passes(passes: int, passed: int) -> None:
    assert _passed({"passes": passes, "max_s": 1e6}) == passed


def test_backfill_seconds() -> None:
    assert _passed({"passes": 1_000_000, "max_s": 3}) in (3, 4)


def _passed(backfill: dict[str, float]) -> int:
    """How many small calls, one a second, start before the large one that came first."""
    scene = Scene(
        pools={"default": {"lanes": 50, "limits": [{"tokens": 1000, "per": 100}]}}, waiting={"backfill": backfill}
    )

    async def all_() -> None:
        await scene.call("first", 0, tokens=900)
        large = asyncio.ensure_future(scene.call("large", 0, tokens=900))
        small = []
        for i in range(60):
            small.append(asyncio.ensure_future(scene.call(f"s{i}", 0, tokens=5)))
            await asyncio.sleep(1)
        await asyncio.gather(large, *small)

    scene.run(all_)
    return scene.order.index("large") - 1


def test_waiting_bounds() -> None:
    scene = Scene(pools={"default": {"lanes": 1}}, waiting={"max_s": 3, "max_queued": 2})
    results = scene.run_all(*(scene.call(f"c{i}", 10) for i in range(4)))
    assert [type(x) for x in results] == [str, QueueTimeout, QueueTimeout, QueueFull]


def test_reaper_limits() -> None:
    scene = Scene(pools={"default": {"lanes": 2}}, reaper={"idle_s": 2, "run_s": 5, "sweep_s": 0.1})

    async def streaming() -> None:
        async with scene.rm.lease(agent="beats") as lease:
            while True:
                await asyncio.sleep(1)
                lease.heartbeat()

    async def timed(work: object) -> tuple[type, float]:
        try:
            await work  # type: ignore[misc]
        except TimeoutError as error:
            return type(error), scene.now
        return type(None), 0

    idle, run = scene.run_all(timed(scene.call("idle", 100)), timed(streaming()))
    assert idle[0] is IdleTimeout and 2 <= idle[1] <= 2.1
    assert run[0] is RunTimeout and 5 <= run[1] <= 5.1


def test_zombies_of_a_pool_and_of_all() -> None:
    for pools, reaper, free in (
        ({"default": {"lanes": 1}}, {"zombies": 0}, False),
        ({"default": {"lanes": 1}}, {"zombies": 1}, True),
        ({"default": {"lanes": 1}}, {"zombies": "lanes"}, True),
        ({"default": {"lanes": 1, "zombies": 0}}, {"zombies": 1}, False),
    ):
        scene, go = Scene(pools=pools, reaper=reaper), threading.Event()

        def hang(scene: Scene = scene, go: threading.Event = go) -> None:
            with pytest.raises(RunTimeout), scene.rm.lease(run_s=1):
                go.wait(10)

        (thread,) = in_threads(hang)
        until(lambda scene=scene: scene.rm.statistics().running == 1)
        scene.clock.advance(3)
        lease = scene.rm.try_lease()
        assert (lease is not None) is free
        if lease is not None:
            lease.release()
        go.set()
        thread.join(10)
        scene.at_rest()


def test_retries_and_recoveries_are_on_the_lease() -> None:
    rm = ResourceManager(pools={"default": {"retry": {"attempts": 9}}}, reaper={"recover": 3})
    lease = rm.lease()
    assert (lease.retry_attempts, lease.recover) == (9, 3)


def test_from_config_reads_a_file_and_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "agentrm.yaml"
    path.write_text("pools: {default: {lanes: 2}}\nwaiting: {max_s: 5}\n")
    for source in (path, str(path), {"pools": {"default": {"lanes": 2}}, "waiting": {"max_s": 5}}):
        rm = ResourceManager.from_config(source)
        assert rm.statistics().pools["default"].lanes == 2 and rm.config.waiting.max_s == 5
    same = ResourceManager.from_config(rm.config, name="second")
    assert same.statistics().pools["default"].lanes == 2 and "second" in repr(same)


@pytest.mark.parametrize(
    "sections",
    [
        {"pools": {"default": {"lanes": 0}}}, {"pools": {"default": {"lanez": 1}}}, {"reaper": {"run_s": -1}},
        {"nonsense": {}},
        {"pools": {"default": {"limits": [{"requests": 0, "per": 60}]}}}, {"pools": {"default": {"account": "none"}}},
        {"reaper": {"run_s": "abc"}}, {"waiting": {"max_queued": 1.5}},
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_work_fails_at_construction(sections: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        ResourceManager(**sections)  # type: ignore[arg-type]
    assert caught.value.key and caught.value.allowed


def test_many_pools_of_one_account_are_all_served() -> None:
    names = [f"p{i}" for i in range(64)]
    scene = Scene(
        accounts={"x": {"limits": [{"requests": 1000, "per": 60}]}},
        pools={name: {"account": "x", "lanes": 1} for name in names},
    )
    results = scene.run_all(*(scene.call(f"{n}{i}", 1, pool=n) for n in names for i in range(3)), longest_s=1000)
    assert all(isinstance(x, str) for x in results)
    assert max(at for _, at in scene.started) <= 3


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"accounts": {"x": {}}, "pools": {f"p{i}": {"account": "x"} for i in range(65)}}, r"accounts\.x"),
        ({"pools": {f"p{i}": {} for i in range(1500)}}, "pools"),
        (
            {"pools": {"default": {"limits": [{"tokens": i + 1, "per": 60} for i in range(7)]}}},
            r"pools\.default\.limits",
        ),
    ],
)
def test_more_than_the_kernel_can_number_is_refused_by_name(sections: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key + ".*at most"):
        ResourceManager(**sections)  # type: ignore[arg-type]


def test_more_agents_and_tenants_than_the_kernel_remembers() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    for i in range(5000):
        with scene.rm.lease(agent=f"a{i}", tenant=f"t{i}"):
            pass
    scene.at_rest()


def test_ten_thousand_agents_may_wait_at_once() -> None:
    scene = Scene(pools={"default": {"lanes": 100}})
    results = scene.run_all(*(scene.call(f"a{i}", 0.01) for i in range(10_000)))
    assert all(isinstance(x, str) for x in results) and scene.most_inside == 100
    scene.at_rest()


def test_names_of_any_length_and_script() -> None:
    scene = Scene()
    for name in ("x" * 1000, "агент", "a\0b", "🙂" * 40, " ", "\n"):
        with scene.rm.lease(agent=name, tenant=name, session=name, model=name):
            assert scene.rm.snapshot().holding[0].session == name
    scene.at_rest()


def test_headers_lower_what_is_left_and_never_raise_it() -> None:
    limits = [{"requests": 10, "per": 60}, {"tokens": 1000, "per": 60}]
    scene = Scene(pools={"default": {"lanes": 9, "limits": limits}})

    def levels() -> list[int]:
        return [x.level for x in scene.rm.statistics().limits.values()]

    def told(requests: int, tokens: int) -> HeaderLimits:
        return HeaderLimits(requests=RateWindow(remaining=requests), tokens=RateWindow(remaining=tokens))

    with scene.rm.lease(tokens=100) as lease:
        scene.rm.observe_headers(lease, told(5000, 90_000))
        assert levels() == [9, 900]
        scene.rm.observe_headers(lease, told(3, 200))
        assert levels() == [3, 200]
        scene.rm.observe_headers(lease, told(0, 0))
        assert levels() == [0, 0]
