"""A real engine whose KV memory holds only some of the programs: alone, and behind the gateway, in one run.

Each program is a loop of turns, as an agent's: its whole history again, one message more, a short answer, then a tool.
What counts is how many turns a minute get done, and how many prompt tokens were computed that had been computed before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from agentrm.config import load
from agentrm.gateway import Gateway
from benchmarks.llama_server import LlamaServer

SENTENCE = "The fox met the crow by the well and asked the way to the old mill behind the hill. "
TOOL_S = 0.2
LIMIT_S = 900.0


@dataclass(frozen=True)
class Shape:
    """Of each program: its turns, the sentences of its system text, the tokens of an answer at most."""

    turns: int
    sentences: int
    answer: int = 8


async def program(
    session: aiohttp.ClientSession, url: str, name: str, shape: Shape, model: str | None
) -> tuple[list[dict[str, int]], int]:
    """Runs one program; the usage of each of its turns, and the prompt tokens that were computed anew."""
    words = itertools.count()
    history: list[dict[str, str]] = [
        {"role": "system", "content": f"You are agent {name}. " + f"{name}: {SENTENCE}" * shape.sentences}
    ]
    known = again = 0
    used: list[dict[str, int]] = []
    for turn in range(shape.turns):
        history.append({"role": "user", "content": f"Step {next(words)} of {name}. {SENTENCE * 2}"})
        body = {
            "messages": history, "max_tokens": shape.answer, "temperature": 0, "model": model or "m",
            "cache_prompt": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        async with session.post(
            f"{url}/v1/chat/completions", json=body, headers={"X-AgentRM-Program": name}
        ) as answer:
            said, usage = _read(await answer.text(), answer.status)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        new = usage["prompt_tokens"] - known if turn else usage["prompt_tokens"]
        again += max(0, usage["prompt_tokens"] - cached - new)
        known = usage["prompt_tokens"]
        used.append({"prompt": known, "answer": usage["completion_tokens"]})
        history.append({"role": "assistant", "content": said or "."})
        await asyncio.sleep(TOOL_S)
    return used, again


def _read(text: str, status: int) -> tuple[str, dict[str, Any]]:
    """What a stream said, and its usage. Raises RuntimeError for anything that is no whole answer."""
    if status != 200 or "[DONE]" not in text:
        raise RuntimeError(f"{status}: {text[-500:]}")
    frames = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    said = "".join(frame["choices"][0]["delta"].get("content") or "" for frame in frames if frame["choices"])
    return said, frames[-1]["usage"]


async def programs(
    url: str, count: int, shape: Shape, model: str | None = None, release: bool = False
) -> dict[str, Any]:
    """All programs at once; turns per minute and tokens computed again."""
    begun = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as session:

        async def one(number: int) -> tuple[list[dict[str, int]], int]:
            done = await program(session, url, f"p{number}", shape, model)
            if release:
                await session.post(f"{url}/programs/release", json={"program_id": f"p{number}"})
            return done

        found = await asyncio.gather(*(one(number) for number in range(count)))
    took = time.monotonic() - begun
    prompts = [turn["prompt"] for used, _ in found for turn in used]
    return {
        "prompt_tokens": [min(prompts), max(prompts)],
        "answer_tokens": round(statistics.mean(turn["answer"] for used, _ in found for turn in used), 1),
        "seconds": round(took, 1),
        "turns_per_min": round(60 * sum(len(used) for used, _ in found) / took, 1),
        "recomputed_tokens": sum(again for _, again in found),
    }


@asynccontextmanager
async def before(url: str, **backend: Any) -> AsyncIterator[Gateway]:
    """A gateway before the engine. No call is taken for hung: alone the engine has as much time as it wants, too."""
    section = {"port": 0, "drain_s": 0, "queue_s": LIMIT_S, "backends": {"a": {"url": url, **backend}}}
    config = load({"gateway": section, "reaper": {"idle_s": LIMIT_S, "run_s": LIMIT_S}})
    async with Gateway(config) as gateway:
        yield gateway


def compared(alone: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    gain = ours["turns_per_min"] / alone["turns_per_min"]
    share = ours["recomputed_tokens"] / max(1, alone["recomputed_tokens"])
    ratios = {"turns_ratio": round(gain, 2), "recomputed_share": round(share, 3), "met": gain >= 1.3 and share <= 0.5}
    return {"alone": alone, "gateway": ours, **ratios}


async def llama(folder: Path, shape: Shape, *, count: int = 6) -> dict[str, Any]:
    """llama-server with two slots and no cache in main memory, for six programs."""
    with LlamaServer(folder, slots=2, context=4096) as server:
        alone = await programs(server.url, count, shape)
    with LlamaServer(folder, slots=2, context=4096) as server:
        async with before(server.url, kind="llamacpp", lanes=2, swap_dir=str(folder)) as gateway:
            ours = await programs(gateway.url, count, shape, release=True)
    engine = "llama-server (xllamacpp), SmolLM2-135M, 2 slots"
    return {"engine": engine, "programs": count, **asdict(shape), **compared(alone, ours)}
