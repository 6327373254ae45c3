"""Clients that leave at random points, ten thousand times: what is left behind afterwards? It must be nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from typing import Any

import aiohttp
from aiohttp import web

from agentrm.config import load
from agentrm.gateway import Gateway

AT_ONCE = 100
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'


class Engine:
    """Answers in random pieces, and now and then breaks off."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.running = self.served = 0

    async def start(self) -> str:
        self._runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=2048).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"data": []})
        await request.read()
        self.running += 1
        self.served += 1
        try:
            await asyncio.sleep(self._chance.uniform(0, 0.02))
            down = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            with contextlib.suppress(ConnectionError):
                await down.prepare(request)
                breaks_at = self._chance.randrange(8) if self._chance.random() < 0.03 else None
                for event in range(self._chance.randrange(8)):
                    if event == breaks_at and request.transport is not None:
                        request.transport.abort()
                    await down.write(EVENT)
                    await asyncio.sleep(self._chance.uniform(0, 0.01))
                await down.write(b"data: [DONE]\n\n")
            return down
        finally:
            self.running -= 1


async def run(requests: int, seed: int) -> dict[str, Any]:
    """How many requests ended how, and what is left."""
    chance, outcomes = random.Random(seed), {"whole": 0, "left": 0, "refused": 0, "broken": 0}
    engines = [Engine(chance), Engine(chance)]
    backends = {name: {"url": await engine.start(), "lanes": 8} for name, engine in zip("ab", engines, strict=True)}
    config = load({"gateway": {"port": 0, "backends": backends, "max_queued": 30, "poll_s": 3600, "drain_s": 1}})
    async with Gateway(config) as gateway:
        async with aiohttp.ClientSession(gateway.url, connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one() -> None:
                body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Go on."}]}
                headers = {"X-AgentRM-Program": f"p{chance.randrange(300)}"} if chance.random() < 0.8 else {}
                async with session.post("/v1/chat/completions", json=body, headers=headers) as answer:
                    text = await answer.text()
                    outcomes["whole" if "[DONE]" in text else "refused" if answer.status == 429 else "broken"] += 1

            async def user(count: int) -> None:
                for _ in range(count):
                    call = asyncio.ensure_future(one())
                    limit = chance.uniform(0, 0.08) if chance.random() < 0.6 else None
                    await asyncio.wait({call}, timeout=limit)
                    if not call.done():
                        outcomes["left"] += 1
                        call.cancel()
                        await asyncio.wait({call})
                    elif call.exception() is not None:
                        outcomes["broken"] += 1

            await asyncio.gather(*(user(requests // AT_ONCE) for _ in range(AT_ONCE)))
        for _ in range(1000):
            if not gateway.open_requests:
                break
            await asyncio.sleep(0.01)
        left = _left(gateway)
    for engine in engines:
        await engine.stop()
    gc.collect()
    mine = asyncio.current_task()
    left["tasks"] = len([task for task in asyncio.all_tasks() if task is not mine])
    return {
        "requests": sum(outcomes.values()), "seed": seed, "outcomes": outcomes, "left": left,
        "engine_calls": sum(engine.served for engine in engines), "met": not any(left.values()),
    }  # fmt: skip


def _left(gateway: Gateway) -> dict[str, int]:
    kernel, desk = gateway.rm.gate, gateway._desk
    stand = [group.scheduler.statistics() for group in desk.groups]
    for group in desk.groups:  # with the programs gone, what counts on the engines must be nothing
        for program in list(group.scheduler.programs):
            group.end(program)
    after = [group.scheduler.statistics() for group in desk.groups]
    return {
        "open_requests": gateway.open_requests,
        "leases": len(kernel.leases),
        "queued": len(kernel.queued),
        "turns_running": sum(one.running for one in stand),
        "turns_waiting": sum(one.waiting for one in stand),
        "tokens_counted": sum(sum(one.used_tokens.values()) for one in after),
    }
