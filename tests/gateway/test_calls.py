"""What a client gets is what the engine said, no more and no less, in the moment it was said."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from agentrm.gateway.asked import read
from agentrm.gateway.frames import Frames, FrameTooLarge
from agentrm.gateway.keys import ANYBODY
from agentrm.gateway.metrics import Family, Tally
from agentrm.gateway.metrics import page as metrics_page
from tests.gateway.engines import DONE, USAGE, Call, Engine, ask, body, client, frame, gateway, nothing_left, said, told


async def test_an_answer_comes_through_unchanged() -> None:
    async with gateway(Engine()) as made:
        status, text = await ask(made)
        assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == "two words"
        nothing_left(made)


async def test_a_client_that_did_not_ask_sees_no_usage_frame_though_the_engine_was_asked() -> None:
    async with gateway(engine := Engine()) as made:
        _, text = await ask(made, stream=True)
        assert text.encode() == said("two") + said(" words") + DONE
        assert engine.calls[0].body["stream_options"] == {"include_usage": True}
        (program,) = [g.scheduler.statistics() for g in made._desk.groups]
        assert program.granted == 1
        assert 'kind="prompt"} 20' in await page(made)  # ... and its figures were used all the same


async def test_a_client_that_asked_sees_it() -> None:
    async with gateway(Engine()) as made:
        _, text = await ask(made, stream=True, stream_options={"include_usage": True, "other": 1})
        assert text.encode() == said("two") + said(" words") + told() + DONE


async def test_a_callers_options_reach_the_engine_as_they_were() -> None:
    async with gateway(engine := Engine()) as made:
        await ask(made, stream=True, stream_options={"include_usage": False, "other": 1})
        assert engine.calls[0].body["stream_options"] == {"include_usage": True, "other": 1}
        await ask(made, tools=[{"type": "function", "function": {"name": "f", "parameters": {"é": "\ud83d"}}}])
        assert engine.calls[1].body["tools"][0]["function"]["parameters"] == {"é": "\ud83d"}
        assert "stream_options" not in engine.calls[1].body


async def test_each_event_goes_out_before_the_next_one_exists() -> None:
    hold = asyncio.Event()

    async def slowly(call: Call) -> web.StreamResponse:
        return await call.stream(said("first"), DONE, hold=hold)

    async with gateway(Engine(slowly)) as made, client(made) as session:
        async with session.post("/v1/chat/completions", json=body(True)) as answer:
            assert (await answer.content.readuntil(b"\n\n")) == said("first")
            assert not hold.is_set()
            hold.set()
            assert await answer.read() == DONE


async def test_tool_calls_pass_untouched() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "ls", "arguments": '{"p": "\\u00e9"}'}, "type": "function"}
    frames = [frame(choices=[{"index": 0, "delta": {"tool_calls": [call]}}]), DONE]

    async def tools(asked: Call) -> web.StreamResponse:
        return await asked.stream(*frames)

    async with gateway(Engine(tools)) as made:
        _, text = await ask(made, stream=True, program_id="p")
        assert text.encode() == b"".join(frames)
        (program,) = made._desk.groups[0].scheduler.programs.values()
        assert program.tool == "ls"


async def test_completions_and_responses_are_served_too() -> None:
    event = b"event: response.completed\ndata: " + json.dumps({"response": {"usage": {"input_tokens": 7, "output_tokens": 1}}}).encode() + b"\n\n"

    async def both(call: Call) -> web.StreamResponse:
        if call.request.path == "/v1/responses":
            assert "stream_options" not in call.body
            return await call.stream(event)
        return web.json_response({"choices": [{"text": "x"}], "usage": USAGE})

    async with gateway(Engine(both)) as made, client(made) as session:
        async with session.post("/v1/completions", json={"model": "m", "prompt": "x"}) as answer:
            assert (await answer.json())["choices"] == [{"text": "x"}]
        async with session.post("/v1/responses", json={"model": "m", "input": "x", "stream": True}) as answer:
            assert await answer.read() == event
        assert 'kind="prompt"} 27' in await page(made)


async def test_errors_of_the_engine_come_through_with_their_status() -> None:
    async def wrong(call: Call) -> web.StreamResponse:
        return web.json_response({"error": {"message": "bad grammar"}}, status=422, headers={"x-request-id": "r7"})

    async with gateway(Engine(wrong)) as made, client(made) as session:
        for stream in (False, True):
            async with session.post("/v1/chat/completions", json=body(stream)) as answer:
                assert answer.status == 422 and answer.headers["x-request-id"] == "r7"
                assert await answer.json() == {"error": {"message": "bad grammar"}}
        nothing_left(made)


async def test_an_overloaded_engine_is_given_time_and_the_client_is_told() -> None:
    async def busy(call: Call) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "7"})

    async with gateway(Engine(busy)) as made, client(made) as session:
        async with session.post("/v1/chat/completions", json=body()) as answer:
            assert answer.status == 429 and answer.headers["Retry-After"] == "7"
        nothing_left(made)
        assert made.rm.try_lease(pool="a", model="m") is None  # the scope is closed for those seconds


async def test_a_client_that_reads_slowly_slows_the_engine_down() -> None:
    """No buffer in between grows: of a stream far larger than all buffers together the engine can't get rid."""
    sent, block = 0, said("x" * 100_000)

    async def endless(call: Call) -> web.StreamResponse:
        nonlocal sent
        down = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await down.prepare(call.request)
        while sent < 2000:  # 200 MB
            await down.write(block)
            sent += 1
        return down

    async with gateway(engine := Engine(endless)) as made, client(made) as session:
        async with session.post("/v1/chat/completions", json=body(True)) as answer:
            await answer.content.readany()
            before = -1
            while sent != before:  # until nothing moves any more
                before = sent
                for _ in range(200):
                    await asyncio.sleep(0)
                await asyncio.get_running_loop().run_in_executor(None, lambda: None)
            assert sent < 400
            answer.close()
        await engine.calls[0].left.wait()
    nothing_left(made)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"model": 7}', "invalid_request"),
        (b'{"model": "m", "program_id": ["x"]}', "invalid_request"),
        (b'{"model": "m", "extra_body": "x"}', "invalid_request"),
        (b"\xff", "invalid_json"),
    ],
)
async def test_what_cannot_be_read_is_refused_and_leaves_nothing(raw: bytes, code: str) -> None:
    async with gateway(engine := Engine()) as made, client(made) as session:
        async with session.post("/v1/chat/completions", data=raw) as answer:
            assert answer.status == 400 and (await answer.json())["error"]["code"] == code
        assert not engine.calls
        nothing_left(made)


async def test_a_request_that_is_too_large_is_refused() -> None:
    async with gateway(engine := Engine(), max_request_bytes=1000) as made:
        status, text = await ask(made, padding="x" * 2000)
        assert status == 413 and "max_request_bytes" in text and not engine.calls


async def test_a_reply_that_is_too_large_is_not_held_in_memory() -> None:
    async def huge(call: Call) -> web.StreamResponse:
        if call.body["stream"]:
            return await call.stream(b"data: " + b"x" * 5000)
        return web.json_response({"choices": [], "padding": "x" * 5000})

    async with gateway(Engine(huge), max_reply_bytes=1000) as made:
        for stream in (False, True):
            status, text = await ask(made, stream=stream)
            assert status == 502 and "1000 bytes" in text
        nothing_left(made)


async def test_models_are_those_of_all_engines() -> None:
    one = Engine(pages={"/v1/models": json.dumps({"data": [{"id": "m"}, {"id": "n"}]})})
    two = Engine(pages={"/v1/models": json.dumps({"data": [{"id": "n"}, {"id": "o"}]})})
    broken = Engine(pages={"/v1/models": "<html>"})
    async with gateway(one, two, broken) as made, client(made) as session:
        async with session.get("/v1/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["m", "n", "o"]


async def test_a_model_goes_to_the_engines_that_serve_it() -> None:
    one, two = await Engine().start(), await Engine().start()
    backends = {"a": {"url": one.url, "models": ["x-*"]}, "b": {"url": two.url + "/v1", "models": ["y-*"]}}
    async with gateway(one, two, backends=backends) as made:
        assert (await ask(made, model="y-1"))[0] == 200
        assert (len(one.calls), len(two.calls)) == (0, 1)
        status, text = await ask(made, model="z")
        assert status == 404 and json.loads(text)["error"]["code"] == "model_not_found"


async def page(made: object) -> str:
    async with aiohttp.ClientSession() as session, session.get(made.url + "/metrics") as answer:  # type: ignore[attr-defined]
        return await answer.text()


def test_a_counter_shows_its_every_unit_however_large_it_is() -> None:
    tally = Tally()
    tally.add("tokens", 12_345_678, kind="prompt")
    tally.add("tokens", 1, kind="prompt")
    gauges = [Family("used", "gauge", {(): 0.25})]
    assert 'agentrm_gateway_tokens_total{kind="prompt"} 12345679\n' in metrics_page(tally, gauges)
    assert "used 0.25\n" in metrics_page(tally, gauges)


@pytest.mark.parametrize("cut", range(1, 12))
def test_frames_come_out_whole_wherever_the_network_cuts_them(cut: int) -> None:
    stream = said("a") + b": ping\r\n\r\n" + frame(choices=[{"delta": {}}], usage=USAGE) + told() + DONE
    frames, out = Frames(True, 10_000), b""
    for at in range(0, len(stream), cut):
        out += frames.feed(stream[at : at + cut])
    assert out == stream.replace(told(), b"") and frames.rest() == b""
    assert frames.last is not None and frames.last["usage"] == USAGE


def test_a_frame_without_an_end_is_refused() -> None:
    with pytest.raises(FrameTooLarge):
        Frames(True, 100).feed(b"data: " + b"x" * 101)


def test_pictures_do_not_count_by_their_data() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    raw = json.dumps(body(messages=[{"role": "user", "content": [picture]}])).encode()
    assert read("/v1/chat/completions", raw, {}, ANYBODY, 1).prompt_tokens < 2000


def test_the_shared_head_of_contexts_is_recognised() -> None:
    def prefix(*messages: tuple[str, str], **more: object) -> object:
        said = [{"role": role, "content": text} for role, text in messages]
        return read("/v1/chat/completions", json.dumps(body(messages=said, **more)).encode(), {}, ANYBODY, 1).prefix

    first = prefix(("system", "You are a tester."), ("user", "one"))
    assert first is not None and first == prefix(("system", "You are a tester."), ("user", "two"))
    assert first != prefix(("system", "You are a tester."), ("user", "one"), tools=[{"type": "function"}])
    assert prefix(("user", "one")) is None
