"""Workloads for the scheduler: the paper's five scenarios and files of recorded turns.

The scenarios are those of "AgentRM" (arXiv 2603.13110, section VI-A). What the paper leaves out (lanes, service times,
durations of hangs, arrivals) is filled in with the values that reproduce its tables, one set per scenario, the same for
every policy: uniform arrivals, Gaussian service times, hangs drawn from one or two uniform ranges. The mix of classes,
which the paper does not give, is a parameter.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agentrm.errors import AgentRMError

__all__ = ["MIX", "SCENARIOS", "Scenario", "Turn", "generate", "read_file", "write_file"]

CLASSES = ("interactive", "subagent", "background")
MIX = (0.3, 0.3, 0.4)
"""Shares of interactive, subagent and background turns."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of one agent. Times in seconds.

    `hang_s` is how long the call hangs before it ends by itself, if `hang`. `retry_ok`: whether a second attempt on a
    fresh connection succeeds. `luck`: 0 to 1, decides at which attempt a policy with several succeeds.
    """

    arrival: float
    agent: str
    klass: str
    tenant: str
    service: float
    tokens: int
    hang: bool = False
    hang_s: float = 0.0
    retry_ok: bool = False
    luck: float = 0.0
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario's effective parameters. `hangs`: (share, shortest, longest) of each range of durations."""

    name: str
    turns: int
    agents: int
    lanes: int
    span_s: float
    service_s: float
    hang_rate: float
    hangs: tuple[tuple[float, float, float], ...]
    recovery: float
    """Share of hung turns whose retry succeeds: what the paper's tables show (61 of 77 in all), not its text's 50 %."""
    wave: tuple[float, float, float] | None = None
    """Lowest and highest hang rate and the period in seconds of an oscillating rate."""


SCENARIOS = {
    s.name: s
    for s in (
        Scenario("normal", 27, 3, 1, 300, 2.5, 0.05, ((1.0, 78, 83),), 0.9),
        Scenario("high", 280, 10, 4, 420, 9, 0.10, ((1.0, 30, 127),), 0.76),
        Scenario("burst", 30, 6, 4, 3, 5.5, 0.08, ((0.5, 10, 30), (0.5, 30, 38)), 0.9),
        Scenario("faulty", 63, 5, 3, 300, 12, 0.30, ((1.0, 65, 180),), 0.75),
        Scenario("cascade", 149, 5, 4, 580, 8.5, 0.168, ((0.4, 10, 30), (0.6, 30, 103)), 0.84, (0.05, 0.40, 200)),
    )
}
TOKENS_PER_S = 50


def _hang_rate(s: Scenario, at: float) -> float:
    if s.wave is None:
        return s.hang_rate
    low, high, period = s.wave
    # a wave that spends more time low than high, so that its mean is the scenario's rate
    phase = 0.5 - 0.5 * math.cos(2 * math.pi * at / period)
    return low + (high - low) * math.pow(phase, (high - low) / (s.hang_rate - low) - 1)


def generate(name: str, seed: int, mix: Sequence[float] = MIX, *, tail: float = 0.0) -> list[Turn]:
    """The scenario's turns for one seed. `tail` > 0 replaces the Gaussian service times by log-normal ones of the same
    mean with that sigma (1.0 is heavy)."""
    s = SCENARIOS[name]
    draw = random.Random(f"{name} {seed}")
    turns = []
    for i in range(s.turns):
        arrival = draw.random() * s.span_s
        if tail:
            service = draw.lognormvariate(math.log(s.service_s) - tail * tail / 2, tail)
        else:
            service = draw.gauss(s.service_s, s.service_s / 4)
        service = max(0.2 * s.service_s, service)
        hang = draw.random() < _hang_rate(s, arrival)
        pick = draw.random()
        hang_s = 0.0
        for share, shortest, longest in s.hangs:
            if pick < share or (share, shortest, longest) == s.hangs[-1]:
                hang_s = draw.uniform(shortest, longest)
                break
            pick -= share
        klass = draw.choices(CLASSES, mix)[0]
        turns.append(
            Turn(
                arrival, f"agent{i % s.agents}", klass, "default", service, round(service * TOKENS_PER_S),
                hang, hang_s, draw.random() < s.recovery, draw.random(),
            )
        )  # fmt: skip
    return sorted(turns, key=lambda t: t.arrival)


def read_file(path: str | Path) -> list[Turn]:
    """Turns from JSON lines with the fields of `Turn` (arrival, agent and service are needed)."""
    turns = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path} is no text ({error})") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise TypeError("a JSON object is needed")
            klass = row.get("klass", row.get("class", "interactive"))
            if klass not in CLASSES:
                raise ValueError(f"class {klass!r} is not one of {', '.join(CLASSES)}")
            arrival, service = float(row["arrival"]), float(row["service"])
            if not (arrival >= 0 and service > 0 and math.isfinite(arrival + service)):
                raise ValueError("arrival must be from 0 and service above 0 seconds")
            turns.append(
                Turn(
                    arrival, str(row["agent"]), klass, str(row.get("tenant", "default")), service,
                    int(row.get("tokens", round(service * TOKENS_PER_S))), bool(row.get("hang", False)),
                    float(row.get("hang_s", 600.0)), bool(row.get("retry_ok", False)),
                    float(row.get("luck", 0.0)), row.get("failure"),
                )
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WorkloadError(f"{path}, line {number}: not a turn ({type(error).__name__}: {error})") from None
    if not turns:
        raise WorkloadError(f"{path} holds no turns; each line is a JSON object with arrival, agent and service")
    return sorted(turns, key=lambda t: t.arrival)


def write_file(path: str | Path, turns: Iterable[Turn]) -> None:
    """The same format."""
    Path(path).write_text("".join(json.dumps(asdict(t)) + "\n" for t in turns))


class WorkloadError(AgentRMError, ValueError):
    """A workload file that can't be read."""
