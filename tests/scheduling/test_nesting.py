"""Calls within calls: no depth and no breadth deadlocks, and never more than the lanes are at work."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from agentrm import LeaseError, QueueTimeout, RunTimeout, current_lease
from tests.scheduling.driver import Scene, in_threads, until


class Tree:
    """Calls that call. `working` counts those that are at work themselves: a call that waits for its children is
    not."""

    def __init__(self, lanes: int, **sections: object) -> None:
        self.scene = Scene(pools={"default": {"lanes": lanes}}, **sections)
        self.working = self.most = 0
        self.done: list[str] = []

    async def work(self, seconds: float) -> None:
        self.working += 1
        self.most = max(self.most, self.working)
        await asyncio.sleep(seconds)
        self.working -= 1

    async def call(self, name: str, depth: int, breadth: int, *, at_once: bool = True) -> None:
        async with self.scene.rm.lease(agent=name):
            await self.work(1)
            if depth:
                children = [self.call(f"{name}.{i}", depth - 1, breadth, at_once=at_once) for i in range(breadth)]
                if at_once:
                    await asyncio.gather(*children)
                else:
                    for child in children:
                        await child
            await self.work(1)
        self.done.append(name)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(("depth", "breadth"), [(1, 1), (3, 1), (12, 1), (1, 5), (2, 3), (3, 2), (2, 10)])
@pytest.mark.parametrize("at_once", [True, False])
def test_no_tree_deadlocks_and_the_cap_holds(lanes: int, depth: int, breadth: int, at_once: bool) -> None:
    tree = Tree(lanes)
    tree.scene.run(lambda: tree.call("root", depth, breadth, at_once=at_once))
    assert len(tree.done) == sum(breadth**i for i in range(depth + 1))
    assert tree.most <= lanes
    tree.scene.at_rest()


@pytest.mark.parametrize("passes", [0, 16])
@pytest.mark.parametrize("child", [{"memory": 30}, {"memory": 30, "pool": "second"}, {"pool": "third", "tokens": 1}])
def test_one_who_waits_for_memory_never_holds_up_the_children_of_its_holder(passes: int, child: dict[str, object]) -> None:
    scene = Scene(
        accounts={"shared": {"limits": [{"memory": 100}]}, "rate": {"limits": [{"tokens": 100, "per": 1}]}},
        pools={
            "default": {"lanes": 4, "account": "shared", "limits": [{"tokens": 100, "per": 1}]},
            "second": {"lanes": 4, "account": "shared"},
            "third": {"lanes": 4, "account": "rate"},
        },
        waiting={"backfill": {"passes": passes, "max_s": 2}},
    )  # fmt: skip

    async def outer() -> None:
        async with scene.rm.lease(agent="outer", memory=60, tokens=1):
            await asyncio.sleep(5)
            await scene.call("child", **child)

    scene.run_all(outer(), scene.call("other", at=1, memory=60, tokens=1), longest_s=30)
    assert [name for name, _ in scene.started] == ["child", "other"]
    scene.at_rest()


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_many_trees_beside_each_other_finish_too(lanes: int) -> None:
    tree = Tree(lanes)
    results = tree.scene.run_all(*(tree.call(f"t{i}", 2, 2) for i in range(6)))
    assert results == [None] * 6 and len(tree.done) == 6 * 7
    assert tree.most <= lanes
    tree.scene.at_rest()


def test_siblings_ride_one_at_a_time_in_order() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def parent() -> None:
        async with scene.rm.lease(agent="parent"):
            await asyncio.gather(*(scene.call(f"c{i}", 2) for i in range(4)))

    scene.run(parent)
    assert scene.started == [("c0", 0), ("c1", 2), ("c2", 4), ("c3", 6)]
    scene.at_rest()


def test_a_child_waits_for_no_stranger_in_front_of_it() -> None:
    """The lane that the parent lends is not the stranger's, however long that one has waited."""
    scene = Scene(pools={"default": {"lanes": 1}})

    async def parent() -> None:
        async with scene.rm.lease(agent="parent"):
            await asyncio.sleep(5)
            await scene.call("child", 1)
            scene.enter("parent ends")
            scene.leave("parent ends")

    scene.run_all(parent(), scene.call("stranger", 1, at=1))
    assert scene.order == ["child", "parent ends", "stranger"]


def test_a_child_in_another_pool_takes_a_lane_there() -> None:
    scene = Scene(pools={"default": {"lanes": 1}, "other": {"lanes": 1}})

    async def parent() -> None:
        async with scene.rm.lease(agent="p"), scene.rm.lease(agent="c", pool="other"):
            assert scene.rm.statistics().running == 2
            async with scene.rm.lease(agent="grandchild") as lease:  # rides on the nearest of its own pool
                assert lease.state == "running"
                assert scene.rm.statistics().pools["default"].in_use == 1

    scene.run(parent)
    scene.at_rest("default", "other")


def test_a_child_that_outlives_its_parent_keeps_the_lane() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def parent() -> asyncio.Task[str]:
        async with scene.rm.lease(agent="parent"):
            task = asyncio.ensure_future(scene.call("child", 10))
            await asyncio.sleep(1)
        return task

    async def all_() -> None:
        task = await parent()
        assert scene.rm.statistics().pools["default"].in_use == 1
        await scene.call("stranger", 1)
        await task

    scene.run(all_)
    assert scene.started == [("child", 0), ("stranger", 10)]
    scene.at_rest()


def test_a_waiting_child_outlives_its_parent_in_the_queue() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def all_() -> None:
        async with scene.rm.lease(agent="parent"):
            first = asyncio.ensure_future(scene.call("first", 10))
            second = asyncio.ensure_future(scene.call("second", 1))
            await asyncio.sleep(1)
        await asyncio.gather(first, second, scene.call("stranger", 1))

    scene.run(all_)
    assert scene.most_inside == 1 and set(scene.order) == {"first", "second", "stranger"}
    scene.at_rest()


def test_a_task_started_in_a_block_and_run_after_it_is_not_nested() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def later() -> None:
        await asyncio.sleep(5)
        assert current_lease() is None
        async with scene.rm.lease() as lease:
            assert lease.parent is None and lease.priority == "interactive"

    async def all_() -> None:
        async with scene.rm.lease(agent="parent"):
            task = asyncio.ensure_future(later())
            await asyncio.sleep(1)
        await task

    scene.run(all_)


def test_cancelling_a_parent_frees_the_whole_branch() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    tree = Tree(1)
    tree.scene = scene

    async def all_() -> None:
        for after in (0.5, 1.5, 2.5, 3.5):
            task = asyncio.ensure_future(tree.call("root", 3, 3))
            await asyncio.sleep(after)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)
            assert scene.rm.statistics().running == 0
            await scene.call("next", 0)

    scene.run(all_)
    scene.at_rest()


def test_reaping_a_parent_leaves_its_child_the_lane() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def all_() -> None:
        with pytest.raises(RunTimeout):
            async with scene.rm.lease(agent="parent", run_s=3):
                child = asyncio.ensure_future(scene.call("child", 10))
                await asyncio.shield(child)
        assert scene.rm.statistics().running == 1
        await asyncio.gather(child, scene.call("stranger", 1))

    scene.run(all_)
    assert scene.started == [("child", 0), ("stranger", 10)]
    scene.at_rest()


def test_a_parent_that_waits_for_a_child_is_not_idle() -> None:
    scene = Scene(pools={"default": {"lanes": 1}}, reaper={"idle_s": 5})

    async def parent() -> str:
        async with scene.rm.lease(agent="parent"):
            async with scene.rm.lease(agent="child") as child:
                for _ in range(10):
                    await asyncio.sleep(3)
                    child.heartbeat()
            await asyncio.sleep(4)  # its own silence begins where the child ended
        return "done"

    assert scene.run_all(parent()) == ["done"]


def test_a_silent_child_is_reaped_and_its_parent_is_not() -> None:
    scene = Scene(pools={"default": {"lanes": 1}}, reaper={"idle_s": 5})

    async def parent() -> str:
        async with scene.rm.lease(agent="parent"):
            with pytest.raises(TimeoutError):
                await scene.call("child", 100)
        return "recovered"

    assert scene.run_all(parent()) == ["recovered"]
    scene.at_rest()


def test_a_child_that_gives_up_waiting_leaves_the_lane_with_its_parent() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})

    async def parent() -> None:
        async with scene.rm.lease(agent="parent"):
            busy = asyncio.ensure_future(scene.call("first", 10))
            await asyncio.sleep(0)
            with pytest.raises(QueueTimeout):
                await scene.call("second", 1, wait_max=2)
            await busy
            await scene.call("third", 1)

    scene.run(parent)
    assert scene.order == ["first", "third"]
    scene.at_rest()


def test_threads_that_lose_the_context_name_the_parent() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    with scene.rm.lease(agent="parent") as parent:
        done: list[str] = []

        def child() -> None:
            with scene.rm.lease(agent="child", parent=parent):
                done.append("child")

        (thread,) = in_threads(child)
        thread.join(10)
        assert done == ["child"]
    scene.at_rest()


def test_threads_with_a_copied_context_nest_by_themselves() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    with scene.rm.lease(agent="parent"):
        done: list[str] = []

        def child(i: int) -> None:
            with scene.rm.lease(agent=f"child{i}") as lease:
                done.append(lease.priority)

        threads = in_threads(*(lambda i=i, c=contextvars.copy_context(): c.run(child, i) for i in range(5)))
        for thread in threads:
            thread.join(10)
        assert done == ["subagent"] * 5
    scene.at_rest()


def test_a_parent_of_another_manager_is_none() -> None:
    one, two = Scene(pools={"default": {"lanes": 1}}), Scene(pools={"default": {"lanes": 1}})
    with one.rm.lease(), two.rm.lease() as inner:
        assert inner.parent is None
    one.at_rest()
    two.at_rest()


def test_a_lease_is_found_behind_those_of_other_managers() -> None:
    one, two = Scene(pools={"default": {"lanes": 1}}), Scene(pools={"default": {"lanes": 1}})
    with one.rm.lease() as outer, two.rm.lease() as between, one.rm.lease() as inner, two.rm.lease() as innermost:
        assert (inner.parent, innermost.parent) == (outer, between)
        one.clock.advance(5)
        innermost.heartbeat()
        assert outer._beat_ns == inner._beat_ns == one.clock.now_ns(), "it waits for a call that goes on"
        assert between._beat_ns == two.clock.now_ns()
    one.at_rest()
    two.at_rest()


def test_a_sibling_takes_a_free_lane_rather_than_wait_for_the_parents() -> None:
    scene = Scene(pools={"default": {"lanes": 3}})

    async def parent() -> None:
        async with scene.rm.lease(agent="parent"):
            await asyncio.gather(*(scene.call(f"c{i}", 1) for i in range(3)))

    scene.run(parent)
    assert {start for _, start in scene.started} == {0}
    assert scene.most_inside == 3


def test_blocked_threads_of_one_tree_do_not_deadlock() -> None:
    scene = Scene(pools={"default": {"lanes": 1}})
    done: list[str] = []

    def node(name: str, depth: int) -> None:
        with scene.rm.lease(agent=name):
            if depth:
                context = [contextvars.copy_context() for _ in range(2)]
                threads = in_threads(
                    *(lambda i=i, c=c: c.run(node, f"{name}.{i}", depth - 1) for i, c in enumerate(context))
                )
                for thread in threads:
                    thread.join(20)
        done.append(name)

    (root,) = in_threads(lambda: node("root", 3))
    until(lambda: len(done) == 15)
    root.join(10)
    scene.at_rest()


@pytest.mark.parametrize("zombies", [0, 1])
def test_work_that_lost_its_lease_and_keeps_its_lane_is_told_when_it_calls_again(zombies: int) -> None:
    """Beyond the bound of zombies a call of its own would wait for itself, for ever."""
    scene = Scene(pools={"default": {"lanes": 1, "zombies": zombies}})
    called = False
    with pytest.raises(RunTimeout), scene.rm.lease(agent="parent", run_s=1):
        scene.clock.advance(3)
        with scene.rm.lease(agent="child"):
            called = True
    assert called is (zombies == 1)
    scene.at_rest()


def test_work_whose_caller_left_is_told_when_it_calls_again() -> None:
    scene = Scene(pools={"default": {"lanes": 1, "zombies": 0}})
    with scene.rm.lease(agent="parent") as lease:
        lease.abandon()
        with pytest.raises(LeaseError, match="has left"):
            scene.rm.lease(agent="child", parent=lease)
    scene.at_rest()
