"""The simulated fleet: the engine keeps its books, and bounding the working set is worth what it is said to be."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from agentrm.cli.main import main
from agentrm.simulation.engine import ENGINE, Engine, Job
from agentrm.simulation.program_metrics import FIGURES, figures
from agentrm.simulation.program_routers import ROUTERS
from agentrm.simulation.programs import Fleet, Step


def until_idle(engine: Engine) -> list[Job]:
    done = []
    while (at := engine.next_event()) < float("inf"):
        done += engine.advance(at)
    return done


def test_an_engine_alone_takes_what_its_constants_say() -> None:
    engine = Engine(ENGINE, 100_000)
    engine.submit(Job(1, prompt=10_000, output=100, reusable=0))
    until_idle(engine)
    step = ENGINE.fixed_s + ENGINE.per_sequence_s + 10_000 * ENGINE.per_token_s
    prefill = 10_000 / ENGINE.prefill_tokens_per_s
    assert engine.now == pytest.approx(100 * step + prefill, rel=0.02)


def test_a_context_that_is_still_cached_is_not_computed_again() -> None:
    engine = Engine(ENGINE, 25_000)
    for key in (1, 2, 1):
        engine.submit(Job(key, 10_000, 10, reusable=10_000))
        (job,) = until_idle(engine)
    assert job.hit == 9_999
    engine.submit(Job(3, 10_000, 10, 0))
    until_idle(engine)
    engine.submit(Job(2, 10_000, 10, reusable=10_000))
    (job,) = until_idle(engine)
    assert job.hit < 9_999, "what was used least recently made room"
    assert engine.held_tokens <= 25_000


def programs(rng: random.Random, many: int = 40) -> list[tuple[Step, ...]]:
    found = []
    for _ in range(many):
        steps, context = [], 0
        for _ in range(rng.randint(10, 30)):
            prompt = context + rng.randint(300, 1_500)
            output = rng.randint(30, 300)
            steps.append(Step(prompt, output, context, rng.uniform(0.1, 1.0), "bash"))
            context = prompt + output
        found.append(tuple(steps))
    return found


@pytest.mark.parametrize("policy", [r for r in ROUTERS if r != "cap"])
def test_every_router_serves_everybody(policy: str, seed: int) -> None:
    fleet = Fleet(programs(random.Random(seed)), 2, 100_000, seed, shared_tokens=200)
    run = fleet.run(ROUTERS[policy](fleet), 30, until_s=1e6, batches=1)
    assert len(run.programs) == 30
    assert all(p.ended is not None for p in run.programs)
    assert run.steps == sum(len(p.steps) for p in run.programs)
    assert all(v >= 0 for v in figures(run, 100_000).values())


def test_the_scheduler_is_far_ahead_of_the_engine_alone_where_memory_is_short(seed: int) -> None:
    found = {}
    for policy in ("lru", "agentrm"):
        fleet = Fleet(programs(random.Random(seed)), 1, 200_000, seed, shared_tokens=200)
        run = fleet.run(ROUTERS[policy](fleet), 40, until_s=1500, warm_up_s=300)
        found[policy] = figures(run, 200_000)
    assert found["agentrm"]["steps_per_min"] > 1.1 * found["lru"]["steps_per_min"]
    assert found["agentrm"]["recomputed_tokens"] < 0.5 * found["lru"]["recomputed_tokens"]
    assert found["agentrm"]["held_large_over_small"] <= 3


def test_figures_of_a_fleet(tmp_path: Path, rng: random.Random) -> None:
    file, out = tmp_path / "steps.jsonl", tmp_path / "out.json"
    rows = []
    for i, steps in enumerate(programs(rng, 6)):
        at, listed = 0.0, []
        for number, step in enumerate(steps):
            listed.append({"step": number, "llm_start": at, "llm_s": 1.0, "in_tok": step.prompt, "out_tok": step.output})
            at += 1.0 + step.tool_s
        rows.append({"run": "bs1", "id": str(i), "steps": listed})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["simulate", "programs", "--trace", str(file), "--format", "glm-steps", "--engines", "2", "--json", str(out)]
    assert main([*command, "--kv-tokens", "100000", "--admit", "8", "--seeds", "2", "--minutes", "3", "--policy",
                 "lru,cap,agentrm"]) == 0  # fmt: skip
    results = json.loads(out.read_text())["results"]
    assert [r["policy"] for r in results] == ["lru", "cap", "agentrm"]
    assert all(r["engines"] == 2 and r["admit"] == 8 and set(FIGURES) <= set(r) for r in results)
    assert all(r["steps_per_min"] > 0 for r in results)
