"""`python -m benchmarks.live_scheduling [--scenario NAME,...] [--policy NAME,...] [--seed N] [--scale N] [--json FILE]`

The scenarios of `agentrm simulate scheduling` once more with nothing simulated but the model: LangChain's ChatOpenAI
through `agentrm_langchain`, HTTP to a provider on this machine that takes as long, hangs as long and answers a second
attempt as the workload's rows say, `scale` times as fast. The manager runs on a clock that is as much faster, so all of
its times are the defaults. Needs the `demo` and `gateway` extras. A busy machine spoils it: `chrt -f 5` before it keeps
others off. Puts its rows into SCHEDULING_LIVE.json (those of other scenarios and policies stay, so it can be run in
pieces) and writes results_scheduling_live.md, which is part of RESULTS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agentrm import ResourceManager, identity
from agentrm.clock import MonotonicClock, Timer
from agentrm.errors import LeaseError
from agentrm.simulation.metrics import classes_of, measure
from agentrm.simulation.provider import Behaviour, StubProvider, StubRequest
from agentrm.simulation.scheduling import CHUNK_S, FIRST_CHUNK_S, POLICIES, Outcome, simulate
from agentrm.simulation.workload import CLASSES, SCENARIOS, Turn, generate
from benchmarks.report import machine, priority

HERE = Path(__file__).parent
BAR = 0.15
COMPARED = ("throughput_per_min", "p95_s")
NEVER = 1e9
# What a manager is told so that it does what the simulator's policy of that name does.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "fifo": {"scheduling": {"policy": "fifo"}, "reaper": {"idle_s": NEVER, "run_s": NEVER, "recover": 0}},
    "paper": {"scheduling": {"policy": "mlfq"}, "reaper": {"idle_s": 20.0, "run_s": NEVER, "recover": 0}},
    "agentrm": {},
}
INTRO = """## Scheduling, live

`{command}` wrote this section: the turns of seed {seed}, once in the simulator and once for
real at so many times the speed (ChatOpenAI through the LangChain plugin, HTTP, a provider in a process of its own on
this machine, uvloop in both). Times are in the scenario's seconds. `fifo` has no reaper, `paper` is AgentRM with the
parameters that reproduce its tables (the provider plays its retries on the held lane), `agentrm` has the defaults. The
bar, 15 % on throughput and P95, is met in {met} of {rows} rows. What a call costs this machine (5 to 10 ms, nearly
all of it the client's) counts as many times as the speed: at 20 it is 0.1 to 0.2 s of the scenario, which adds up where
calls queue.

{machine}
"""


class FastClock:
    """The machine's clock, `scale` times as fast."""

    def __init__(self, scale: int) -> None:
        self._real, self._scale = MonotonicClock(), scale

    def now_ns(self) -> int:
        return self._real.now_ns() * self._scale

    def wall(self) -> float:
        return self._real.wall()

    def call_at(self, when_ns: int, fn: Callable[[], object]) -> Timer:
        timer = self._real.call_at(-(-when_ns // self._scale), fn)
        timer.when_ns = when_ns  # for whoever set it; the real clock goes by its own entry
        return timer


class Script:
    """What the provider does with the attempts at each turn, which names itself in its message: what the simulator
    takes them to do under that policy's reaper."""

    def __init__(self, turns: Sequence[Turn], reaper: str) -> None:
        self._turns, self._reaper = turns, reaper
        self._attempts: Counter[int] = Counter()

    def __call__(self, request: StubRequest) -> Behaviour:
        number = int(request.messages[-1]["content"].rsplit(" ", 1)[1])
        if number < 0:
            return Behaviour()
        self._attempts[number] += 1
        return self.behaviour(self._turns[number], self._attempts[number])

    def behaviour(self, turn: Turn, attempt: int) -> Behaviour:
        if not turn.hang or (attempt > 1 and turn.retry_ok):
            return streamed(turn)
        if self._reaper == "none":
            return Behaviour("error", service_s=turn.hang_s)
        if self._reaper == "paper" and turn.retry_ok:
            return streamed(turn, 10.0 if turn.luck < 0.69 else 15.0)
        return Behaviour("hang")


def streamed(turn: Turn, after_s: float = 0.0) -> Behaviour:
    """The turn's tokens in chunks about as far apart as the simulator takes them to be, the last at its end."""
    first = min(FIRST_CHUNK_S, turn.service)
    tokens = max(1, turn.tokens)
    wanted = 1 + max(0, round((turn.service - first) / CHUNK_S))
    each = -(-tokens // wanted)
    gaps = -(-tokens // each) - 1
    if not gaps:
        first = turn.service
    return Behaviour(
        service_s=after_s + first, output_tokens=tokens, tokens_per_chunk=each,
        gap_s=(turn.service - first) / gaps if gaps else 0.0,
    )  # fmt: skip


@contextmanager
def provider(script: Script, scale: int) -> Iterator[str]:
    """The address of a provider in a process of its own, as providers are: it does not wait for the client's Python."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_provide, args=(its, script, scale))
    process.start()
    try:
        yield mine.recv()
    finally:
        mine.send("stop")
        process.join()


def _provide(pipe: Connection, script: Script, scale: int) -> None:
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    with StubProvider(script, time_scale=1 / scale) as running:
        pipe.send(running.base_url)
        gc.freeze()
        pipe.recv()


async def _live(policy: str, lanes: int, turns: Sequence[Turn], scale: int) -> list[Outcome]:
    import httpx
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    from agentrm_langchain import gate_model

    outcomes = [Outcome(turn) for turn in turns]
    sections: dict[str, Any] = {**SETTINGS[policy], "pools": {"default": {"lanes": lanes, "retry": {"attempts": 1}}}}
    with (
        provider(Script(turns, POLICIES[policy].reaper), scale) as base_url,
        ResourceManager(clock=(clock := FastClock(scale)), **sections) as rm,
    ):
        pool = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=None)
        client = ChatOpenAI(
            model="stub", base_url=base_url, api_key=SecretStr("any"), http_async_client=pool, stream_usage=True
        )
        model = gate_model(rm, client)
        with ResourceManager() as other:  # what a first call makes once is no part of it, nor is it learnt from
            async for _ in gate_model(other, client).astream("turn -1"):
                pass
        gc.collect()
        gc.freeze()  # nor is walking through what the imports left behind: 0.17 s, 3 s of the scenario
        period_ns = round(rm.config.scheduling.boost_s * 1e9)
        wait_ns = -clock.now_ns() % period_ns  # the kernel boosts at whole periods, and the simulator begins with one
        begin = time.monotonic() + wait_ns / 1e9 / scale

        async def run(number: int) -> None:
            turn, outcome = turns[number], outcomes[number]
            await asyncio.sleep(begin + turn.arrival / scale - time.monotonic())
            try:
                with identity(agent=turn.agent, priority=turn.klass, tenant=turn.tenant):  # type: ignore[arg-type]
                    async for _ in model.astream(f"turn {number}"):
                        pass
                outcome.answered = True
            except (LeaseError, TimeoutError):
                pass
            except Exception as error:  # the provider's own end of a hang, as the client reads it
                if getattr(error, "status_code", None) != 500:
                    raise
            outcome.ended = (time.monotonic() - begin) * scale

        await asyncio.gather(*(run(number) for number in range(len(turns))))
        await pool.aclose()
    return outcomes


def compare(scenario: str, policy: str, seed: int, scale: int) -> list[dict[str, Any]]:
    """One row per class and figure: what the simulator says, what was measured."""
    import uvloop

    turns = generate(scenario, seed)
    lanes = SCENARIOS[scenario].lanes
    simulated = classes_of(simulate(POLICIES[policy], lanes, turns))
    live = classes_of(uvloop.run(_live(policy, lanes, turns, scale)))
    rows = []
    for klass in live:
        said, seen = measure(simulated[klass]), measure(live[klass])
        row: dict[str, Any] = {"scenario": scenario, "policy": policy, "seed": seed, "scale": scale, "class": klass}
        for metric in ("answered", *COMPARED):
            row[metric] = {"simulated": said[metric], "live": seen[metric]}
        rows.append(row)
    return rows


def off(row: Mapping[str, Any]) -> float:
    """How far the live figure is from the simulated one, whichever is farther."""
    return max(abs(float(row[m]["live"]) / float(row[m]["simulated"]) - 1) for m in COMPARED)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| speed | scenario | policy | class | answered | turns/min | | P95 s | | within 15 % |",
        "|---:|---|---|---|---:|---:|---:|---:|---:|---|",
        "| | | | | simulated, live | simulated | live | simulated | live | |",
    ]
    for row in rows:
        answered = ", ".join(f"{x:g}" for x in row["answered"].values())
        figures = " | ".join(f"{row[m]['simulated']:.4g} | {row[m]['live']:.4g}" for m in COMPARED)
        verdict = "yes" if off(row) <= BAR else f"no ({off(row):.0%})"
        names = " | ".join(str(row[key]) for key in ("scale", "scenario", "policy", "class"))
        lines.append(f"| {names} | {answered} | {figures} | {verdict} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_scheduling")
    parser.add_argument("--scenario", default=",".join(SCENARIOS))
    parser.add_argument("--policy", default=",".join(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--json", type=Path, default=HERE / "SCHEDULING_LIVE.json")
    args = parser.parse_args()
    kept = json.loads(args.json.read_text())["results"] if args.json.exists() else []
    by = {(row["scale"], row["scenario"], row["policy"], row["class"]): row for row in kept}
    for scenario in args.scenario.split(","):
        for policy in args.policy.split(","):
            rows = compare(scenario, policy, args.seed, args.scale)
            by |= {(row["scale"], row["scenario"], row["policy"], row["class"]): row for row in rows}
            print(*table(rows)[3:], sep="\n", flush=True)
    order = [
        (n, s, p, c)
        for n in sorted({key[0] for key in by})
        for s in SCENARIOS
        for p in SETTINGS
        for c in ("all", *CLASSES)
    ]
    rows = [by[key] for key in order if key in by]
    args.json.write_text(json.dumps({"machine": machine(), "results": rows}, indent=1) + "\n")
    met = sum(off(row) <= BAR for row in rows)
    command = " ".join([*priority(), "python", "-m", "benchmarks.live_scheduling"])
    intro = INTRO.format(command=command, seed=args.seed, machine=machine(), met=met, rows=len(rows))
    (HERE / "results_scheduling_live.md").write_text("\n".join([intro, *table(rows)]) + "\n")


if __name__ == "__main__":
    main()
