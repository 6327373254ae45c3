"""One run of the scenario: starts the agents, asks them on time, ends on time, and collects what happened."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any

from agentrm import ResourceManager
from agentrm.demo.agents import Access, Agents, Run, build, manager
from agentrm.demo.journal import Ask, Journal
from agentrm.demo.provider import ProviderProcess
from agentrm.demo.scenario import ASSISTANT, Scenario
from agentrm.errors import AgentRMError
from agentrm.limits.provider_errors import read_error
from agentrm.models import LocalEngine
from agentrm.simulation.provider import RequestRecord

__all__ = ["Sighting", "Taken", "run_once", "warm_up"]

_LOOK_S = 0.25
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """How far a run is: what the progress display shows."""

    seconds: float
    asks: tuple[Ask, ...]
    refused: int
    hung: int
    open_requests: int


@dataclass(frozen=True, slots=True)
class Taken:
    """All that was recorded of one run. It took `ended_s` seconds; nothing was cut off before `stopped_s`.

    `provider_began_s`: when the clock of `requests` began, in seconds since the start of the run. `left_open`: calls at
    the provider, on the local model and in the manager that were still open when all agents had ended.
    """

    scenario: Scenario
    journal: Journal
    requests: tuple[RequestRecord, ...]
    provider_began_s: float
    stopped_s: float
    ended_s: float
    left_open: int


def warm_up(scenario: Scenario) -> LocalEngine:
    """Loads every library that a run uses and the model, so that the first run does not pay for the second. The model
    stays loaded while it is referenced. Raises ModelError if the weights are not here, AgentRMError if an agent does
    not work."""
    model = LocalEngine.shared(scenario.local_model, threads=1)
    once = replace(
        scenario, questions=1, indexers=1, notes_each=1, sorters=1, letters_each=1, hang=0.0, stall=0.0,
        refuse_with_hint=0.0, refuse_without_hint=0.0, cut_s=60.0,
    )  # fmt: skip
    for ask in run_once(once, with_agentrm=False, show=lambda _: None).journal.asks:
        if ask.outcome != "answered":
            raise AgentRMError(f"the demo's {ask.agent} does not work here even without faults: {ask.error}")
    return model


def run_once(scenario: Scenario, *, with_agentrm: bool, show: Callable[[Sighting], object]) -> Taken:
    """Runs the scenario and calls `show` a few times a second. Blocks until it is over; leaves nothing running."""
    with ProviderProcess(scenario) as provider:
        rm = manager(scenario) if with_agentrm else None
        return asyncio.run(_run(scenario, provider, rm, show))


async def _run(
    scenario: Scenario, provider: ProviderProcess, rm: ResourceManager | None, show: Callable[[Sighting], object]
) -> Taken:
    journal = Journal()
    agents = build(scenario, provider.base_url, Access(rm), journal)
    journal.started = time.monotonic()
    work = [asyncio.create_task(job) for job in _jobs(scenario, agents, journal)]
    looking = asyncio.create_task(_look(provider, journal, show))
    await asyncio.wait(work, timeout=scenario.cut_s)
    stopped = journal.now()
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    ended = journal.now()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    seen = await asyncio.to_thread(provider.finish, _GRACE_S)
    held = 0 if rm is None else len((await rm.aclose(_GRACE_S)).left)
    left = seen.left_open + journal.open_local_calls + held
    return Taken(scenario, journal, seen.records, provider.started - journal.started, stopped, ended, left)


def _jobs(scenario: Scenario, agents: Agents, journal: Journal) -> Iterator[Coroutine[Any, Any, None]]:
    for n in range(scenario.questions):
        yield _person(scenario, agents.assistant, n, journal)
    for name, run in agents.indexers.items():
        notes = [scenario.note(name, n) for n in range(scenario.notes_each)]
        yield _background(run, name, notes, scenario, journal)
    for name, run in agents.sorters.items():
        letters = [scenario.letter(name, n) for n in range(scenario.letters_each)]
        yield _background(run, name, letters, scenario, journal)


async def _person(scenario: Scenario, run: Run, number: int, journal: Journal) -> None:
    """Asks when it is time, whether or not earlier questions are answered: else slow answers would hide themselves."""
    await asyncio.sleep(scenario.every_s * (number + 0.5))
    await _ask(run, scenario.question(number), Ask(ASSISTANT, number, journal.now()), journal)


async def _background(run: Run, agent: str, texts: list[str], scenario: Scenario, journal: Journal) -> None:
    """One job after the other, each once: an agent whose job fails goes on to its next."""
    await asyncio.sleep(random.Random(f"{scenario.seed} {agent} start").uniform(0, scenario.every_s / 2))
    for number, text in enumerate(texts):
        await _ask(run, text, Ask(agent, number, journal.now()), journal)


async def _ask(run: Run, text: str, ask: Ask, journal: Journal) -> None:
    journal.asks.append(ask)
    try:
        await run(text)
        ask.outcome = "answered"
    except asyncio.CancelledError:
        ask.outcome, ask.error = "cut", "not answered when the run was ended"
        raise
    except Exception as error:  # noqa: BLE001 - whatever an agent fails with is what the demo counts
        problem = read_error(error)
        ask.outcome, ask.error = "failed", f"{type(error).__name__}: {error}"
        ask.refused = problem is not None and problem.kind == "rate"
    finally:
        ask.ended_s = journal.now()


async def _look(provider: ProviderProcess, journal: Journal, show: Callable[[Sighting], object]) -> None:
    while True:
        seen = await asyncio.to_thread(provider.statistics)
        hung = seen.outcomes.get("hung", 0) + seen.outcomes.get("stalled", 0)
        show(Sighting(journal.now(), tuple(journal.asks), seen.http_429, hung, seen.open_requests))
        await asyncio.sleep(_LOOK_S)
