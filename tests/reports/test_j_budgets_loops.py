"""Bug reports of area j, budgets and runaway loops: one test per report."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import pytest

import agentrm
from agentrm.adapters import CallSpec, call, stream
from agentrm.config import PriceWarning
from agentrm.limits.errors import BudgetExceeded, LoopDetected, OutputLimit, PriceUnknown, SpawnRefused, StepLimit
from agentrm.limits.guards import Call, GuardEvent, Guards
from tests.scheduling.driver import Scene


def test_r156_identical_calls_of_a_sub_agent_are_stopped_and_its_parent_told() -> None:
    told: list[GuardEvent] = []
    with agentrm.ResourceManager(budgets={"agent.parent": {"calls": 1000}}) as rm:
        guards = rm.guard(agent="parent", repeat=5, on_event=told.append)
        grep, made, warned = Call("grep", {"pattern": "x", "path": "src"}, "child"), 0, []
        with pytest.raises(LoopDetected, match="grep 5 times") as caught, guards.child("child"):
            for step in range(1, 365):
                with rm.lease(tokens=100) as lease:  # the model asks for it
                    lease.settle(input_tokens=90, output_tokens=10)
                guards.before(grep)
                made += 1
                if guards.after(grep, "src/a.py:1: x") is not None:
                    warned.append(step)
        assert (made, step, warned) == (5, 6, [5])
        assert caught.value.agent == "child"
        assert [(e.kind, e.agent, e.parent) for e in told] == [
            ("warning", "child", "parent"),
            ("loop", "child", "parent"),
        ]
        spent = rm.statistics().budgets["agent.parent"].spent
        assert (spent["calls"], spent["tokens"]) == (6, 600)


def test_r157_polling_is_no_loop_while_it_moves_or_is_marked() -> None:
    with agentrm.ResourceManager() as rm:

        def poll(guards: Guards, results: Iterator[str]) -> int:
            status, made = Call("status", {"job": 1}), 0
            for result in results:
                guards.before(status)
                guards.after(status, result)
                made += 1
            return made

        assert poll(rm.guard(repeat=5), (f"{n}0 %" for n in range(1, 11))) == 10
        assert poll(rm.guard(repeat=5, polling=("status",)), ("running" for _ in range(50))) == 50
        unmarked = rm.guard(repeat=5)
        with pytest.raises(LoopDetected):
            poll(unmarked, ("running" for _ in range(50)))
        assert [event.kind for event in unmarked.events] == ["warning", "loop"]


@pytest.mark.parametrize("by_hand", [True, False])
def test_r159_an_output_limit_is_noticed_while_the_reply_is_streamed(by_hand: bool) -> None:
    closed_at: list[int] = []

    def chunks() -> Iterator[str]:
        produced = 0
        try:
            while produced < 11_210:
                produced += 10
                yield "x" * 40
        finally:
            closed_at.append(produced)

    with agentrm.ResourceManager(budgets={"agent.a": {"tokens": 1000}}) as rm:
        partial: list[str] = []
        if by_hand:
            upstream = chunks()
            with (
                pytest.raises(OutputLimit) as caught,
                rm.lease(agent="a", input_tokens=20, max_output_tokens=100) as lease,
            ):
                for number, chunk in enumerate(upstream, 1):
                    try:
                        lease.heartbeat(output_tokens=10 * number)
                    except OutputLimit:
                        upstream.close()
                        raise
                    partial.append(chunk)
        else:
            spec = CallSpec(agent="a", input_tokens=20, max_output_tokens=100, size=lambda chunk: len(chunk) // 4)
            with pytest.raises(OutputLimit) as caught:
                for chunk in stream(rm, spec, chunks):
                    partial.append(chunk)
            assert list(caught.value.partial) == partial
        assert closed_at == [110]  # by chunk 11
        assert (caught.value.limit, sum(len(chunk) for chunk in partial) // 4) == (100, 100)
        assert rm.statistics().running == 0
        assert rm.statistics().budgets["agent.a"].spent["tokens"] == 20 + 110


def test_r161_a_model_without_a_price_never_counts_as_free() -> None:
    requests: list[str] = []

    def ask(rm: agentrm.ResourceManager, model: str) -> None:
        spec = CallSpec(agent="a", model=model, input_tokens=100, max_output_tokens=100)

        def provider() -> dict[str, object]:
            requests.append(model)
            return {"usage": {"prompt_tokens": 100, "completion_tokens": 100}}

        call(rm, spec, provider)

    budgets = {"agent.a": {"usd": 0.02}}
    with agentrm.ResourceManager(budgets=budgets) as rm:
        with pytest.raises(PriceUnknown, match="'big-4.1'"):
            ask(rm, "big-4.1")
        assert requests == []
        rm.prices.set("big-4.1", input=10, output=40)  # a call costs 0.005
        with pytest.raises(BudgetExceeded, match="0.02 US dollars"):
            for _ in range(100):
                ask(rm, "big-4.1")
        assert len(requests) == 4
        assert rm.statistics().budgets["agent.a"].spent["usd"] == pytest.approx(0.02)

    with agentrm.ResourceManager(budgets=budgets, prices={"*": {"input": 100, "output": 100}}) as rm:
        ask(rm, "big-4.1")  # at the rate stated for all that is not listed
        assert rm.statistics().budgets["agent.a"].spent["usd"] == pytest.approx(0.02)

    with agentrm.ResourceManager() as rm, rm.lease(agent="a", model="big-4.1", tokens=200) as lease:
        lease.settle(input_tokens=100, output_tokens=100)
        assert lease.cost_usd == "unknown"


def test_r162_descendants_are_bounded_in_depth_number_and_total() -> None:
    scene = Scene(pools={"default": {"lanes": 2}})
    guards = scene.rm.guard(agent="root", depth=3, live=6, total=20)
    seen = {"depth": 0, "live": 0}
    refused: list[SpawnRefused] = []

    async def agent(name: str) -> str:
        async with scene.rm.lease(tokens=1):
            await asyncio.sleep(1)
        results = await asyncio.gather(*(spawn(f"{name}.{n}") for n in range(3)))
        return f"{name}: {len([r for r in results if r])}"

    async def spawn(name: str) -> str:
        try:
            with guards.child(name) as kin:
                seen["depth"], seen["live"] = max(seen["depth"], kin.depth), max(seen["live"], guards.live)
                return await agent(name)
        except SpawnRefused as error:
            refused.append(error)
            return ""

    assert scene.run(lambda: agent("root")).startswith("root: ")
    assert seen["depth"] <= 3 and seen["live"] <= 6 and guards.total <= 20
    assert guards.live == 0
    assert {error.limit for error in refused} <= {"depth", "live", "total"} and refused
    assert all(error.agent in str(error) and "do the work yourself" in str(error) for error in refused)
    scene.at_rest()


def test_r166_the_best_answer_so_far_survives_the_step_limit() -> None:
    with agentrm.ResourceManager(budgets={"agent.a": {"usd": 0.01}}, prices={"m": {"input": 10, "output": 10}}) as rm:
        guards = rm.guard(agent="a")
        steps = guards.steps(5, finalise=True)
        made = [step.tools for step in steps]
        assert made == [True] * 5 + [False]
        assert steps.status == "limit"

        with pytest.raises(StepLimit) as caught:
            for step in guards.steps(5):
                step.record(f"result {step.number}")
        assert caught.value.transcript == tuple(f"result {n}" for n in range(1, 6))

        last = {"model": "m", "input_tokens": 300, "max_output_tokens": 100}  # 0.004
        with rm.lease(agent="a", model="m", tokens=600) as lease:
            lease.settle(input_tokens=600)  # 0.006: it just fits
        assert [step.tools for step in guards.steps(5, finalise=last)][-1] is False
        with rm.lease(agent="a", model="m", tokens=1) as lease:
            lease.settle(input_tokens=1)
        with pytest.raises(StepLimit, match="no room"):
            for step in guards.steps(5, finalise=last):
                step.record(step.number)


def test_r167_no_budget_means_no_check_and_a_wrong_price_can_be_put_right() -> None:
    with agentrm.ResourceManager(prices={"m": {"input": 1000, "output": 1000}}) as rm:
        with rm.lease(model="m", tokens=1_000_000) as lease:
            lease.settle(input_tokens=1_000_000)
        assert lease.cost_usd == pytest.approx(1000)

    with pytest.warns(PriceWarning, match="76 for each token"):
        rm = agentrm.ResourceManager(budgets={"agent.a": {"usd": 100}}, prices={"m": {"input": 76e6, "output": 76e6}})
    with rm.lease(agent="a", model="m", tokens=1) as lease:
        lease.settle(input_tokens=1000)
    with pytest.raises(BudgetExceeded):
        rm.lease(agent="a", model="m", tokens=1).acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        change = rm.prices.set("m", input=76, output=76)
    assert change.past == {}
    assert rm.statistics().budgets["agent.a"].spent["usd"] == pytest.approx(76_000)  # what was spent stays
    change = rm.prices.set("m", input=76, output=76, past=True)
    assert change.past == {"agent.a": (pytest.approx(76_000), pytest.approx(0.076))}
    assert rm.prices.changes[-1] is change
    with rm.lease(agent="a", model="m", tokens=1):
        pass
    rm.close()


def test_r169_a_pace_delays_a_swarm_and_fails_nobody() -> None:
    scene = Scene(budgets={"agent.root": {"pace": 20_000}}, pools={"default": {"lanes": 20}})
    guards = scene.rm.guard(agent="root")

    async def agent(n: int) -> None:
        with guards.child(f"a{n}"):
            await scene.call(f"a{n}", 2, tokens=8_700, use=8_700)

    results = scene.run_all(*(agent(n) for n in range(20)))
    assert [x for x in results if isinstance(x, BaseException)] == []
    spent_in_minute_1 = 8_700 * len([at for _, at in scene.started if at < 60])
    assert spent_in_minute_1 <= 20_000 + 8_700
    assert len(scene.ended) == 20 and max(at for _, at in scene.ended) <= 9 * 60
    scene.at_rest()
