"""Who may do what: keys, tenants, classes; and what of a client's request an engine gets to see."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agentrm.config import load
from agentrm.errors import ConfigError
from agentrm.gateway import Gateway
from agentrm.gateway.keys import Keys
from tests.gateway.engines import Call, Engine, ask, certificate, client, gateway, nothing_left, plain
from tests.waiting import come


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


KEYS = {
    "one": {"sha256": digest("key-one"), "tenant": "red"},
    "two": {"sha256": digest("key-two"), "tenant": "blue", "priority": "background"},
}


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **more}


async def test_without_a_key_nothing_is_served_but_health() -> None:
    async with gateway(engine := Engine(), keys=KEYS) as made, client(made) as session:
        for method, path in (
            ("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/programs"), ("GET", "/metrics"),
            ("POST", "/programs/release"),
        ):  # fmt: skip
            for headers in ({}, bearer("wrong"), {"Authorization": "Basic key-one"}):
                async with session.request(method, path, headers=headers, json={}) as answer:
                    assert answer.status == 401, path
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
        for path in ("/health", "/ready"):
            async with session.get(path) as answer:
                assert answer.status == 200
        assert not engine.calls


async def test_a_key_serves_and_is_not_passed_on() -> None:
    async with gateway(engine := Engine(), keys=KEYS) as made:
        assert (await ask(made, headers=bearer("key-one")))[0] == 200
        assert (await ask(made, headers={"api-key": "key-two"}))[0] == 200
        for call in engine.calls:
            assert "Authorization" not in call.headers and "api-key" not in call.headers


async def test_the_engines_own_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sesame")
    async with gateway(engine := Engine(), keys=KEYS, each={"api_key_env": "ENGINE_KEY"}) as made:
        await ask(made, headers=bearer("key-one"))
        assert engine.calls[0].headers["Authorization"] == "Bearer sesame"


async def test_what_is_meant_for_the_engine_is_passed_on_and_nothing_else() -> None:
    sent = {
        "traceparent": "00-abc-def-01", "X-Request-Id": "r1", "Authorization": "Bearer theirs", "Cookie": "a=b",
        "X-Forwarded-For": "1.2.3.4", "Proxy-Authorization": "x", "X-AgentRM-Priority": "background", "TE": "trailers",
    }  # fmt: skip
    async with gateway(engine := Engine()) as made:
        await ask(made, headers=sent)
        got = {name.lower(): value for name, value in engine.calls[0].headers.items()}
        assert got["traceparent"] == "00-abc-def-01" and got["x-request-id"] == "r1"
        assert got["authorization"] == "Bearer theirs"  # the gateway has no keys of its own, so it is the engine's
        assert not {"cookie", "x-forwarded-for", "proxy-authorization", "x-agentrm-priority", "te"} & set(got)


async def test_tenants_see_and_release_their_own_programs_only() -> None:
    async with gateway(Engine(), keys=KEYS) as made, client(made) as session:
        for key in ("key-one", "key-two"):
            await ask(made, headers=bearer(key), program_id="p")
        await ask(made, headers=bearer("key-two"))  # one without a name
        async with session.get("/programs", headers=bearer("key-one")) as answer:
            assert [one["program_id"] for one in (await answer.json())["programs"]] == ["p"]
        for key, known in (("key-one", True), ("key-one", False)):
            async with session.post("/programs/release", headers=bearer(key), json={"program_id": "p"}) as answer:
                assert await answer.json() == {"program_id": "p", "released": known}
        async with session.get("/programs", headers=bearer("key-two")) as answer:
            assert len((await answer.json())["programs"]) == 1


async def test_a_key_may_ask_for_no_more_than_its_class() -> None:
    seen = []

    async def notes(call: Call) -> web.StreamResponse:
        seen.append(call.body["priority"])
        return await plain(call)

    async with gateway(Engine(notes), keys=KEYS, each={"kind": "vllm", "priority": True}) as made:
        for key, asked in (("key-one", "subagent"), ("key-one", None), ("key-two", "interactive"), ("key-two", None)):
            more = {"X-AgentRM-Priority": asked} if asked else {}
            assert (await ask(made, headers=bearer(key, **more)))[0] == 200
        assert seen == [1, 0, 2, 2]
        status, text = await ask(made, headers=bearer("key-one", **{"X-AgentRM-Priority": "root"}))
        assert status == 400 and "interactive, subagent, background" in text


async def test_what_waits_is_served_by_class_and_not_by_arrival() -> None:
    hold, order = asyncio.Event(), []

    async def notes(call: Call) -> web.StreamResponse:
        order.append(call.body["tag"])
        await hold.wait()
        return await plain(call)

    async with gateway(engine := Engine(notes), each={"lanes": 1}) as made:
        calls = [asyncio.ensure_future(ask(made, tag="first"))]
        await engine.arrived.wait()
        for n, tag in enumerate(("background", "subagent", "interactive"), 1):
            calls.append(asyncio.ensure_future(ask(made, tag=tag, headers={"X-AgentRM-Priority": tag})))
            await come(lambda: sum(g.scheduler.statistics().waiting for g in made._desk.groups) >= n)
        hold.set()
        await asyncio.gather(*calls)
        assert order == ["first", "interactive", "subagent", "background"]
        nothing_left(made)


async def test_a_tenants_budget_holds_for_what_comes_through_the_gateway() -> None:
    rest = {"budgets": {"tenant.red": {"calls": 1}}}
    async with gateway(Engine(), keys=KEYS, rest=rest) as made:
        assert (await ask(made, headers=bearer("key-one")))[0] == 200
        status, text = await ask(made, headers=bearer("key-one"))
        assert status in (403, 429) and "tenant" in json.loads(text)["error"]["message"]
        assert (await ask(made, headers=bearer("key-two")))[0] == 200
        nothing_left(made)


async def test_a_call_that_moves_to_another_engine_is_charged_once() -> None:
    async def dies(call: Call) -> web.StreamResponse:
        return await call.cut()

    rest = {"budgets": {"tenant.red": {"calls": 1}}}
    async with gateway(first := Engine(dies), Engine(), keys=KEYS, rest=rest) as made:
        status, _ = await ask(made, headers=bearer("key-one"))
        assert status == 200 and len(first.calls) == 2
        nothing_left(made)


async def test_limits_of_a_pool_hold_for_the_engine_of_its_name() -> None:
    rest = {"pools": {"a": {"lanes": 4, "limits": [{"requests": 1, "per": 3600}]}}}
    async with gateway(Engine(), rest=rest, queue_s=0.05) as made:
        assert (await ask(made))[0] == 200
        assert (await ask(made))[0] == 503
        nothing_left(made)


def test_beyond_loopback_keys_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"gateway\.host"):
        load({"gateway": {"host": "0.0.0.0"}})
    load({"gateway": {"host": "0.0.0.0", "keys": KEYS}})
    assert load({}).gateway.host == "127.0.0.1"


def test_a_key_that_the_environment_lacks_is_found_at_the_start() -> None:
    keys = load({"gateway": {"keys": {"x": {"env": "NOT_THERE"}}}}).gateway.keys
    with pytest.raises(ConfigError, match=r"gateway\.keys\.x\.env"):
        Keys(keys, {})
    with pytest.raises(ConfigError, match="a key of its own"):
        Keys(load({"gateway": {"keys": {"x": {"env": "A"}, "y": {"env": "B"}}}}).gateway.keys, {"A": "k", "B": "k"})


def test_no_secret_stands_in_the_settings_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "very-secret")
    config = load({"gateway": {"backends": {"a": {"url": "http://x", "api_key_env": "SOME_KEY"}}, "keys": {"x": {"env": "SOME_KEY"}}}})
    assert "very-secret" not in str(config.explain()) + repr(Gateway(config).config)


async def test_with_tls_the_gateway_speaks_nothing_else(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with gateway(Engine(), tls={"cert": str(cert), "key": str(key)}) as made:
        assert made.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(cert))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session:
            async with session.get(made.url + "/v1/models") as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(made.url.replace("https", "http") + "/health")


async def test_a_certificate_that_does_not_load_is_found_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("none")
    config = {"backends": {"a": {"url": "http://127.0.0.1:1"}}, "tls": {"cert": str(tmp_path / "c.pem"), "key": str(tmp_path / "c.pem")}}
    with pytest.raises(ConfigError, match="certificate"):
        await Gateway(load({"gateway": config})).start()
