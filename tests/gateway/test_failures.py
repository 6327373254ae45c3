"""Engines die, clients leave, queues fill: nobody is lost without an answer, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random

import aiohttp
import pytest
from aiohttp import web

from tests.gateway.engines import DONE, Call, Engine, ask, body, client, gateway, nothing_left, plain, said
from tests.waiting import come


async def hangs(call: Call) -> web.StreamResponse:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_whose_engine_dies_without_a_word_goes_to_the_other(stream: bool) -> None:
    first, second = Engine(hangs), Engine()
    async with gateway(first, second) as made:
        asked = asyncio.ensure_future(ask(made, stream=stream, program_id="p"))
        await first.arrived.wait()
        await first.kill()
        status, text = await asked
        assert status == 200 and "two" in text and "words" in text
        nothing_left(made)


async def test_an_engine_that_only_said_its_headers_has_not_answered() -> None:
    async def headers(call: Call) -> web.StreamResponse:
        down = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await down.prepare(call.request)
        return await hangs(call)

    first, second = Engine(headers), Engine()
    async with gateway(first, second) as made:
        asked = asyncio.ensure_future(ask(made, stream=True))
        await first.arrived.wait()
        await first.kill()
        assert (await asked)[1].encode() == said("two") + said(" words") + DONE


async def test_a_stream_that_breaks_off_says_so_and_is_not_begun_anew() -> None:
    async def breaks(call: Call) -> web.StreamResponse:
        return await call.cut(said("two"))

    first, second = Engine(breaks), Engine(breaks)
    async with gateway(first, second) as made:
        status, text = await ask(made, stream=True)
        events = [json.loads(line[6:]) for line in text.splitlines() if line]
        assert status == 200 and events[0]["choices"][0]["delta"]["content"] == "two"
        assert events[-1]["error"]["code"] == "engine_failed" and "incomplete" in events[-1]["error"]["message"]
        assert "[DONE]" not in text
        assert len(first.calls) + len(second.calls) == 1
        nothing_left(made)


async def test_killing_one_of_two_engines_loses_no_call_that_had_not_begun() -> None:
    """Half the streams have begun when the engine dies, half wait inside it: the first are told, the others answered."""
    holds = asyncio.Event()

    async def first_half(call: Call) -> web.StreamResponse:
        if call.body["n"] % 4 < 2:
            return await call.stream(said("two"), DONE, hold=holds)
        return await hangs(call)

    first, second = Engine(first_half), Engine()
    async with gateway(first, second) as made:
        second.answer = first_half
        calls = [asyncio.ensure_future(ask(made, stream=True, n=n)) for n in range(40)]
        await come(lambda: len(first.calls) + len(second.calls) >= 40)
        begun = [n for call in first.calls if (n := call.body["n"]) % 4 < 2]
        waited = [n for call in first.calls if (n := call.body["n"]) % 4 >= 2]
        assert begun and waited
        second.answer = plain
        await first.kill()
        for n in waited:
            status, text = await calls[n]
            assert status == 200 and text.endswith("[DONE]\n\n") and "error" not in text
        for n in begun:
            status, text = await calls[n]
            assert '"engine_failed"' in text or '"code": "engine_failed"' in text
        holds.set()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await come(lambda: not made.open_requests)
        nothing_left(made)


async def test_a_call_that_breaks_every_engine_ends_with_an_error() -> None:
    async def dies(call: Call) -> web.StreamResponse:
        return await call.cut()

    first, second = Engine(dies), Engine(dies)
    async with gateway(first, second) as made:
        status, text = await ask(made)
        assert status == 502 and json.loads(text)["error"]["code"] == "engine_failed"
        assert {len(first.calls), len(second.calls)} == {2, 1}
        nothing_left(made)


async def test_an_engine_that_is_down_at_the_start_is_used_once_it_is_up(caplog: pytest.LogCaptureFixture) -> None:
    late = await Engine().start()
    await late.kill()
    async with gateway(late, queue_s=0.05) as made, client(made) as session:
        async with session.get("/ready") as answer:
            assert answer.status == 503
        status, text = await ask(made)
        assert status == 503 and "no engine is up" in text
        for _ in range(3):
            await made.look()
        warned = [r.getMessage() for r in caplog.records if "has not answered yet" in r.getMessage()]
        assert len(warned) == 1 and late.url in warned[0]
        await late.start()
        await made.look()
        assert (await ask(made))[0] == 200
        await late.kill()
        for _ in range(3):
            await made.look()
        assert sum("does not answer any more" in r.getMessage() for r in caplog.records) == 1
        nothing_left(made)


async def test_an_engine_that_accepts_and_always_closes_is_given_up_soon() -> None:
    taken = 0

    def slams(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        writer.close()

    engine = Engine()
    async with gateway(engine, queue_s=300, down_s=0.05) as made:
        await engine.kill()
        server = await asyncio.start_server(slams, "127.0.0.1", engine.port)
        for _ in range(2):  # the second one comes when it is known
            status, text = await ask(made)
            assert status == 503 and json.loads(text)["error"]["code"] == "no_engine_up"
            assert "gateway.down_s" in text
        assert taken >= 2
        nothing_left(made)
        server.close()
        await server.wait_closed()
        await engine.start()
        await made.look()
        assert (await ask(made))[0] == 200


async def test_an_engine_that_comes_back_serves_those_that_waited_for_it() -> None:
    engine = Engine()
    async with gateway(engine) as made:
        await ask(made, program_id="p")
        await engine.kill()
        waiting = asyncio.ensure_future(ask(made, program_id="p"))
        await come(lambda: any(g.scheduler.statistics().waiting for g in made._desk.groups))
        await engine.start()
        await made.look()
        assert (await waiting)[0] == 200


async def test_an_engine_that_misses_one_look_is_not_taken_to_be_dead() -> None:
    engine = Engine(pages={"/v1/models": 503})
    async with gateway(engine) as made, client(made) as session:
        engine.pages.clear()
        await made.look()
        engine.pages["/v1/models"] = 503
        await made.look()
        assert (await ask(made))[0] == 200
        await made.look()
        async with session.get("/ready") as answer:
            assert answer.status == 503


async def test_a_capacity_that_changed_is_noticed() -> None:
    line = 'vllm:kv_cache_usage_perc{engine="0"} 0.1\nvllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="%d"} 1\n'
    engine = Engine(pages={"/metrics": line % 100})
    async with gateway(engine, each={"kind": "vllm"}) as made:
        (group,) = made._desk.groups
        assert (group.scheduler.backends["a"].capacity, group.scheduler.backends["a"].block) == (1584, 16)
        engine.pages["/metrics"] = line % 10
        await made.look()
        assert group.scheduler.backends["a"].capacity == 144
        engine.pages["/metrics"] = "nothing of ours"
        await made.look()
        assert group.scheduler.backends["a"].capacity > 10**12  # unknown bounds nothing, and is not zero
        assert group.scheduler.backends["a"].block == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_call_at_the_engine(stream: bool) -> None:
    async def begins(call: Call) -> web.StreamResponse:
        return await call.stream(said("two"), DONE, hold=asyncio.Event()) if stream else await hangs(call)

    async with gateway(engine := Engine(begins)) as made:
        asked = asyncio.ensure_future(ask(made, stream=stream, program_id="p"))
        await engine.arrived.wait()
        asked.cancel()
        await asyncio.wait_for(engine.calls[0].left.wait(), 10)
        nothing_left(made)


async def test_a_client_that_leaves_the_queue_is_never_sent_on() -> None:
    async with gateway(engine := Engine(hangs), each={"lanes": 1}) as made:
        held = asyncio.ensure_future(ask(made))
        await engine.arrived.wait()
        queued = asyncio.ensure_future(ask(made))
        await come(lambda: any(g.scheduler.statistics().waiting for g in made._desk.groups))
        queued.cancel()
        await come(lambda: made.open_requests <= 1)
        held.cancel()
        await engine.calls[0].left.wait()
        assert len(engine.calls) == 1
        nothing_left(made)


async def test_random_departures_leave_nothing_behind(rng: random.Random) -> None:
    """300 requests, each given up at a random point of its way: in the queue, before the answer, in it, or not at all."""

    async def anything(call: Call) -> web.StreamResponse:
        for _ in range(call.body["wait"]):
            await asyncio.sleep(0)
        if call.body["fate"] == 0:
            return await call.cut(*[said("two")][: call.body["wait"] % 2])
        return await plain(call)

    async with gateway(Engine(anything), Engine(anything), each={"lanes": 4}, max_queued=100) as made:
        async with aiohttp.ClientSession(made.url, connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one(n: int) -> None:
                more = {"wait": rng.randrange(20), "fate": rng.randrange(10), "program_id": f"p{rng.randrange(40)}"}
                async with session.post("/v1/chat/completions", json=body(rng.random() < 0.7, **more)) as answer:
                    await answer.read()

            async def gives_up(n: int) -> None:
                call = asyncio.ensure_future(one(n))
                for _ in range(rng.randrange(200)):
                    await asyncio.sleep(0)
                if rng.random() < 0.6:
                    call.cancel()
                await asyncio.wait({call})
                if not call.cancelled() and (error := call.exception()) is not None:
                    assert isinstance(error, aiohttp.ClientError)

            for start in range(0, 300, 60):
                await asyncio.gather(*(gives_up(n) for n in range(start, start + 60)))
        await come(lambda: not made.open_requests)
        nothing_left(made)
        assert (await ask(made, wait=0, fate=1))[0] == 200  # no lane is lost
        mine = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not mine and "gateway" in str(task.get_coro())]
        assert len([task for task in left if "watch" not in str(task.get_coro())]) == 0


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with gateway(engine := Engine(hangs), each={"lanes": 1}, max_queued=1) as made, client(made) as session:
        held = [asyncio.ensure_future(ask(made)) for _ in range(2)]
        await come(lambda: made.open_requests >= 2 and engine.calls)
        async with session.post("/v1/chat/completions", json=body()) as answer:
            assert answer.status == 429
            assert int(answer.headers["Retry-After"]) >= 1 and int(answer.headers["retry-after-ms"]) >= 1
            assert (await answer.json())["error"]["code"] == "queue_full"
        for call in held:
            call.cancel()
        await asyncio.wait(held)


async def test_a_call_that_waits_too_long_is_told_so() -> None:
    async with gateway(engine := Engine(hangs), each={"lanes": 1}, queue_s=0.05) as made:
        held = asyncio.ensure_future(ask(made))
        await engine.arrived.wait()
        status, text = await ask(made)
        assert status == 503 and json.loads(text)["error"]["code"] == "queue_timeout"
        held.cancel()
        await engine.calls[0].left.wait()
        nothing_left(made)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_hangs_loses_the_call_and_the_client_is_told(stream: bool) -> None:
    async def begins(call: Call) -> web.StreamResponse:
        return await call.stream(said("two"), DONE, hold=asyncio.Event()) if stream else await hangs(call)

    limits = {"reaper": {"run_s": 0.1, "sweep_s": 0.02}}
    async with gateway(engine := Engine(begins), rest=limits) as made:
        status, text = await asyncio.wait_for(ask(made, stream=stream), 20)
        assert "call_timeout" in text and status == (200 if stream else 504)
        await engine.calls[0].left.wait()
        nothing_left(made)


async def test_draining_lets_what_runs_end_and_takes_nothing_new() -> None:
    hold = asyncio.Event()

    async def begins(call: Call) -> web.StreamResponse:
        return await call.stream(said("two"), DONE, hold=hold)

    async with gateway(engine := Engine(begins)) as made:
        async with client(made) as session:
            running = asyncio.ensure_future(ask(made, stream=True))
            await engine.arrived.wait()
            stopping = asyncio.ensure_future(made.stop(60))
            await asyncio.sleep(0)
            async with session.post("/v1/chat/completions", json=body()) as answer:
                assert answer.status == 503 and "Retry-After" in answer.headers
            async with session.get("/ready") as answer:
                assert answer.status == 503 and (await answer.json())["status"] == "draining"
            hold.set()
            assert (await running)[1].encode() == said("two") + DONE
        await stopping


async def test_what_runs_when_the_time_to_drain_is_over_is_told() -> None:
    async def begins(call: Call) -> web.StreamResponse:
        return await call.stream(said("two"), DONE, hold=asyncio.Event())

    async with gateway(engine := Engine(begins)) as made:
        running = asyncio.ensure_future(ask(made, stream=True))
        await engine.arrived.wait()
        waiting = asyncio.ensure_future(ask(made, stream=True, program_id="p"))
        await come(lambda: len(engine.calls) >= 2)
        await made.stop(0)
        for call in (running, waiting):
            status, text = await call
            assert "shut down" in text
        nothing_left(made)
