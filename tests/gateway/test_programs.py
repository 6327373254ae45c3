"""Programs through the gateway: what belongs together stays together, and what is over holds nothing."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from tests.gateway.engines import (
    DONE,
    USAGE,
    Call,
    Engine,
    ask,
    body,
    client,
    frame,
    gateway,
    nothing_left,
    plain,
    said,
)
from tests.waiting import come


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ({"X-AgentRM-Program": "p1"}, {}),
        ({"X-Session-ID": "p1"}, {}),
        ({}, {"program_id": "p1"}),
        ({}, {"extra_body": {"program_id": "p1", "top_k": 3}}),
        ({}, {"user": "p1"}),
        ({"X-AgentRM-Program": "p1", "X-Session-ID": "no"}, {"user": "no"}),
    ],
    ids=["header", "session header", "body", "extra_body", "user", "the most special wins"],
)
async def test_a_program_can_be_named_in_several_ways(headers: dict[str, str], more: dict[str, object]) -> None:
    async with gateway(engine := Engine()) as made:
        await ask(made, headers=headers, **more)
        assert list(made._desk.groups[0].scheduler.programs) == ["default/p1"]
        sent = engine.calls[0].body
        assert "program_id" not in sent and "extra_body" not in sent  # an engine may refuse what it does not know
        if "extra_body" in more:
            assert sent["top_k"] == 3


async def test_a_program_stays_on_its_engine_and_others_spread() -> None:
    one, two = Engine(), Engine()
    async with gateway(one, two) as made:
        for _ in range(3):
            for program in ("p", "q"):
                await ask(made, program_id=program)
        assert len(one.calls) == len(two.calls) == 3


async def test_calls_without_a_program_are_not_one_program() -> None:
    hold = asyncio.Event()

    async def waits(call: Call) -> web.StreamResponse:
        await hold.wait()
        return await plain(call)

    async with gateway(engine := Engine(waits)) as made:
        calls = [asyncio.ensure_future(ask(made)) for _ in range(5)]
        await come(lambda: len(engine.calls) >= 5)
        assert len(made._desk.groups[0].scheduler.programs) == 5
        hold.set()
        await asyncio.gather(*calls)
        assert not made._desk.groups[0].scheduler.programs
        nothing_left(made)


async def test_calls_of_one_program_at_once_are_counted_one_by_one() -> None:
    holds = [asyncio.Event(), asyncio.Event()]

    async def waits(call: Call) -> web.StreamResponse:
        await holds[call.body["n"]].wait()
        return await plain(call)

    async with gateway(engine := Engine(waits)) as made:
        calls = [asyncio.ensure_future(ask(made, program_id="p", n=n)) for n in range(2)]
        await come(lambda: len(engine.calls) >= 2)
        (program,) = made._desk.groups[0].scheduler.programs.values()
        assert program.running == 2
        holds[0].set()
        await calls[0]
        assert program.running == 1 and program.phase == "reasoning"  # the other one still runs
        holds[1].set()
        await calls[1]
        assert program.running == 0 and program.phase == "acting"


@pytest.mark.parametrize("how", ["no usage", "error", "cut", "leaves", "no usage at all"])
async def test_a_program_does_not_reason_for_ever_however_its_call_ends(how: str) -> None:
    """Without this the phantoms pile up, and their tokens with them."""

    async def ends(call: Call) -> web.StreamResponse:
        if how == "error":
            return web.json_response({"error": {}}, status=500)
        if how == "cut":
            return await call.cut(said("x"))
        if how == "leaves":
            return await call.stream(said("x"), DONE, hold=asyncio.Event())
        if how == "no usage at all":
            return web.Response(text="not even JSON")
        return await call.stream(said("x"), frame(choices=[], usage=None), DONE)

    async with gateway(engine := Engine(ends)) as made:
        engine.answer = plain
        await ask(made, program_id="p")
        engine.answer = ends
        asked = asyncio.ensure_future(ask(made, stream=True, program_id="p"))
        if how == "leaves":
            await come(lambda: len(engine.calls) >= 2)
            asked.cancel()
            await engine.calls[1].left.wait()
        else:
            await asked
        (program,) = made._desk.groups[0].scheduler.programs.values()
        assert (program.phase, program.running, program.waiting) == ("acting", 0, False)
        nothing_left(made)


async def test_a_stream_without_usage_is_charged_an_estimate() -> None:
    async def silent(call: Call) -> web.StreamResponse:
        return await call.stream(*[said("x")] * 30, DONE)

    async with gateway(Engine(silent)) as made:
        await ask(made, stream=True, program_id="p")
        (program,) = made._desk.groups[0].scheduler.programs.values()
        assert program.context_tokens > 30


async def test_the_exact_count_of_a_turn_is_kept() -> None:
    async with gateway(Engine()) as made, client(made) as session:
        await ask(made, program_id="p", padding="x" * 1000)
        async with session.get("/programs") as answer:
            (program,) = (await answer.json())["programs"]
        assert program["context_tokens"] == USAGE["total_tokens"] and program["turns"] == 1


async def test_a_program_that_is_released_ends_where_it_waits_and_where_it_runs() -> None:
    async def hangs(call: Call) -> web.StreamResponse:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with gateway(engine := Engine(hangs), each={"lanes": 1}) as made, client(made) as session:
        running = asyncio.ensure_future(ask(made, program_id="p"))
        await engine.arrived.wait()
        waiting = asyncio.ensure_future(ask(made, program_id="p"))
        await come(lambda: made.open_requests >= 2)
        async with session.post("/programs/release", json={"program_id": "p"}) as answer:
            assert (await answer.json())["released"] is True
        for call in (running, waiting):
            status, text = await call
            assert status == 409 and json.loads(text)["error"]["code"] == "program_released"
        await engine.calls[0].left.wait()
        assert len(engine.calls) == 1
        nothing_left(made)


async def test_a_program_of_which_nothing_is_heard_ends_by_itself() -> None:
    async with gateway(Engine(), idle_s=0.05) as made:
        await ask(made, program_id="p")
        programs = made._desk.groups[0].scheduler.programs
        assert programs
        await come(lambda: not programs)


async def test_the_working_set_of_an_engine_stays_within_its_memory() -> None:
    """Three programs of 400 tokens on an engine of 1,000: never more than two of them count at once."""
    usage = {"prompt_tokens": 350, "completion_tokens": 50}

    async def large(call: Call) -> web.StreamResponse:
        return web.json_response({"choices": [], "usage": usage})

    async with gateway(Engine(large), each={"kv_tokens": 1000}) as made:
        (group,) = made._desk.groups
        for _ in range(3):
            for program in ("p", "q", "r"):
                await ask(made, program_id=program, max_tokens=50, messages=[{"role": "user", "content": "x" * 1400}])
                assert group.scheduler.statistics().used_tokens["a"] <= 1000
        assert group.scheduler.statistics().pauses > 0
        nothing_left(made)


async def test_what_happens_can_be_read_by_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_KEY", "sesame")
    headers = {"Authorization": "Bearer sesame"}
    async with gateway(Engine(), keys={"k": {"env": "CLIENT_KEY", "tenant": 'red"\n1'}}) as made:
        await ask(made, headers=headers, program_id="p", stream=True)
        await ask(made, headers=headers, model=7)
        async with client(made, **headers) as session, session.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = await answer.text()
        for line in (
            'agentrm_gateway_requests_total{backend="a",tenant="red\\"\\n1",outcome="answered"} 1',
            'agentrm_gateway_tokens_total{backend="a",kind="cached"} 16',
            'agentrm_gateway_refused_total{code="invalid_request"} 1',
            'agentrm_gateway_programs{status="resident"} 1',
            'agentrm_gateway_backend_up{backend="a"} 1',
            "agentrm_gateway_first_token_seconds_count 1",
        ):
            assert line in text.splitlines()
        assert "engine_running" not in text  # the engine does not say, so it is not 0
        assert json.dumps(body()) not in text


async def test_what_computing_again_costs_is_learnt_from_the_engine() -> None:
    """The prefill rate decides for how long an idle program is worth its room."""
    usage = {"prompt_tokens": 5000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1000}}

    async def answers(call: Call) -> web.StreamResponse:
        return await call.stream(said("x"), frame(choices=[], usage=usage), DONE)

    async with gateway(Engine(answers)) as made:
        place = made._places.all["a"]
        (group,) = made._desk.groups
        before = place.prefill_rate
        await ask(made, stream=True)
        assert place.prefill_rate != before
        assert group.scheduler.backends["a"].prefill_rate == place.prefill_rate
        usage["prompt_tokens_details"] = {"cached_tokens": 4999}
        seen = place.prefill_rate
        await ask(made, stream=True)
        assert place.prefill_rate == seen  # nothing was computed, so nothing was learnt
