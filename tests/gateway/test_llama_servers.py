"""Two real llama-servers behind the gateway: programs move between them, and one of them is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentrm.config import load
from agentrm.gateway import Gateway
from agentrm.models import catalog
from benchmarks.llama_server import LlamaServer
from tests.gateway.engines import nothing_left
from tests.waiting import come

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.model
STORY = "The fox met the crow by the well and asked the way to the mill. " * 8
"""About 130 tokens."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[LlamaServer]]:
    if catalog.installed_file(catalog.lookup("smollm2-135m")) is None:
        pytest.skip("its weights are not installed: agentrm models fetch smollm2-135m")
    made = [LlamaServer(tmp_path, slots=1, context=2048) for _ in range(2)]
    try:
        yield [server.start() for server in made]
    finally:
        for server in made:
            server.kill()


@asynccontextmanager
async def before(servers: list[LlamaServer], folder: Path, lanes: int = 1) -> AsyncIterator[Gateway]:
    backends = {
        name: {"kind": "llamacpp", "url": server.url, "lanes": lanes, "swap_dir": str(folder)}
        for name, server in zip("ab", servers, strict=True)
    }
    async with Gateway(load({"gateway": {"port": 0, "poll_s": 3600, "drain_s": 0, "backends": backends}})) as made:
        yield made


async def ask(made: Gateway, program: str, text: str, *, tokens: int = 4, stream: bool = False) -> tuple[str, Any]:
    """The backend that answered, and its answer."""
    asked = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": stream, "temperature": 0}
    async with aiohttp.ClientSession() as session, session.post(
        made.url + "/v1/chat/completions", json=asked, headers={"X-AgentRM-Program": program}
    ) as answer:
        text = await answer.text()
        return answer.headers.get("X-AgentRM-Backend", ""), text if stream else json.loads(text)


async def test_a_program_paused_on_one_server_resumes_on_the_other(servers: list[LlamaServer], tmp_path: Path) -> None:
    async with before(servers, tmp_path) as made:
        first, answer = await ask(made, "p", STORY)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        busy = asyncio.ensure_future(ask(made, "q", "Count from one to one hundred.", tokens=60))
        (group,) = made._desk.groups
        program = group.scheduler.programs["default/p"]
        await come(lambda: any(group.scheduler.backends[name].running for name in "ab"))
        group.scheduler.backend_down(first, group._now())  # it takes nothing more; what it holds can be written out
        group._carry_out()
        assert program.status == "paused"
        second, answer = await ask(made, "p", STORY)
        assert second != first
        usage = answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 2
        await busy
        nothing_left(made)


async def test_programs_that_take_turns_in_one_slot_compute_nothing_twice(
    servers: list[LlamaServer], tmp_path: Path
) -> None:
    servers[1].kill()
    async with before(servers, tmp_path) as made:
        for turn in range(3):
            for program in ("p", "q", "r"):
                _, answer = await ask(made, program, f"{program}: {STORY}")
                usage = answer["usage"]
                if turn:
                    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 2
        backend = made._places.all["a"].backend
        assert backend.restored == 6 and backend.failed == 0  # type: ignore[attr-defined]
        nothing_left(made)


async def test_killing_one_of_two_servers_in_mid_stream(servers: list[LlamaServer], tmp_path: Path) -> None:
    """Streams that had begun there end with a clear error; whoever waited is answered by the other one."""
    async with before(servers, tmp_path, lanes=3) as made:
        calls = {
            n: asyncio.ensure_future(ask(made, f"p{n}", f"Tell me a long story about {n} foxes.", tokens=40, stream=True))
            for n in range(6)
        }
        (group,) = made._desk.groups
        await come(lambda: any(t.ticket.backend == "a" and t.events for t in made._desk.open))
        assert {t.ticket.backend for t in made._desk.open} == {"a", "b"}
        servers[0].kill()
        begun = {int(t.asked.program[-1]) for t in made._desk.open if t.ticket.backend == "a" and t.events}
        for n, call in calls.items():
            _, text = await call
            if n in begun and "engine_failed" in text:
                assert "[DONE]" not in text and '"error"' in text
            else:
                assert text.endswith("[DONE]\n\n"), text[-300:]
        assert any("engine_failed" in call.result()[1] for call in calls.values())
        nothing_left(made)
