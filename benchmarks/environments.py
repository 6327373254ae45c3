"""What tool environments bound to programs are worth: nothing left after crashes, disk that follows the living, and
preparation that nobody waits for.

    python -m benchmarks.environments [--json FILE] [--programs 500] [--seed 1] [--only storm,disk,hidden,live]

storm   real owner processes run programs with real environments (a folder, a command, a server that ignores the polite
        signal); programs fail at random, owners are killed at random moments. Then `agentrm doctor --clean`.
disk    300 programs, a few at a time: bytes on disk against what live programs need, and against never cleaning up.
hidden  simulated time, the real kernel: how much of the preparation is on a program's way, ahead and on demand.
live    the same with real threads and a provider that takes half a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrm import ResourceManager, VirtualClock
from agentrm.tools import Completed, Environment, Environments, Place, Usage
from agentrm.tools.local import disk_bytes
from agentrm.tools.processes import marked
from benchmarks.environments_storm import ENVIRONMENT_BYTES, SETUP, left_in, storm

DISK_PROGRAMS, DISK_AT_ONCE = 300, 8
PREPARE_S = (29.9, 32.8, 38.4, 47.2)
"""Seconds to prepare a sandbox with 24, 48, 72 and 96 programs (ThunderAgent, arXiv 2602.13692, read off a figure)."""
HORIZON_S = 12 * 3600


class Nothing:
    """A provider that makes nothing, `seconds` long."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def create(self, place: Place) -> None:
        time.sleep(self.seconds)

    def remove(self, place: Place) -> None:
        """There is nothing."""

    def is_there(self, place: Place) -> bool:
        return True

    def run(self, place: Place, words: Any, timeout_s: float | None, stop_fd: int) -> Completed:
        return Completed(0, "", "", False, 0.0)

    def serve(self, place: Place, words: Any) -> None:
        """There is nothing."""

    def usage(self, place: Place) -> Usage:
        return Usage(0, 0, ())


# --- disk ---


@dataclass
class Disk:
    programs: int
    at_once: int
    peak_bytes: int
    peak_over_need: float
    """The most that was in use, as a part of what the programs alive at that moment need."""
    left_bytes: int
    never_cleaned_bytes: int
    times_less: float


async def disk(home: Path) -> Disk:
    rm = ResourceManager(
        environments={
            "home": str(home), "grace_s": 0.2, "preparing": 4,
            "kinds": {"box": {"setup": SETUP}},
        },
        pools={"default": {"lanes": DISK_AT_ONCE}},
    )  # fmt: skip
    environments, alive, made = rm.environments, 0, 0
    peak, over = 0, 0.0

    def look() -> None:
        nonlocal peak, over
        used = disk_bytes(home / "places")
        peak = max(peak, used)
        over = max(over, used / max(1, alive * (ENVIRONMENT_BYTES + 16384)))

    async def one(number: int) -> None:
        nonlocal alive, made
        async with rm.lease(agent=f"p{number}", tokens=0):
            alive += 1
            async with environments.program(f"p{number}") as program:
                box = await program.environment_async("box")
                made += box.usage().disk_bytes
                look()
            look()
            alive -= 1

    await asyncio.gather(*(one(i) for i in range(DISK_PROGRAMS)))
    left = disk_bytes(home / "places")
    await rm.aclose()
    return Disk(DISK_PROGRAMS, DISK_AT_ONCE, peak, over, left, made, made / peak)


# --- preparation off the way, in simulated time ---


@dataclass
class Hidden:
    programs: int
    running: int
    preparing: int
    prepare_s: float
    ahead: bool
    awaited_share: float
    """Part of the preparation that a program, admitted already, waited for."""
    way_share: float
    """Part of the programs' time from admission to end that was such waiting."""
    programs_per_hour: float


def hidden(programs: int, running: int, preparing: int, prepare_s: float, ahead: bool, seed: int) -> Hidden:
    """A closed loop: `programs`, of which `running` are admitted; one that ends is replaced by a new one. Counted
    are those that end after the first ones have, within twelve hours."""
    rng, clock = random.Random(seed), VirtualClock()
    rm = ResourceManager(
        clock=clock, seed=seed, pools={"default": {"lanes": running}},
        environments={"preparing": preparing, "kinds": {"box": {"provider": "nothing", "setup_s": 10_000}}},
        reaper={"run_s": 1e6, "idle_s": 1e6},
    )  # fmt: skip

    def making(_: Environment, done: Callable[[BaseException | None], None]) -> None:
        took = rng.lognormvariate(0, 0.25) * prepare_s
        clock.call_at(clock.now_ns() + int(took * 1e9), lambda: done(None))

    environments = Environments(rm, providers={"nothing": Nothing()}, making=making, recover=False)
    counted = {"awaited": 0.0, "prepared": 0.0, "total": 0.0, "done": 0.0, "since": 0.0}
    begun = ended = 0

    def arrive() -> None:
        nonlocal begun
        name, begun = f"p{begun}", begun + 1
        if ahead:
            environments.prepare(name, "box")
        lease = rm.lease(agent=name, tokens=0, parent=None)
        lease.acquire_then(lambda error: admitted(name, lease))

    def admitted(name: str, lease: Any) -> None:
        at = clock.elapsed
        environment = environments.prepare(name, "box") if not ahead else environments.of_program(name)["box"]
        environment.when_settled(lambda: ready(name, lease, environment, at))

    def ready(name: str, lease: Any, environment: Environment, at: float) -> None:
        works = rng.lognormvariate(0, 0.8) * 600
        awaited = clock.elapsed - at
        clock.call_at(clock.now_ns() + int(works * 1e9), lambda: over(name, lease, environment, awaited, at))

    def over(name: str, lease: Any, environment: Environment, awaited: float, at: float) -> None:
        nonlocal ended
        ended += 1
        environments.end(name)
        if ended == programs:  # warm
            counted["since"] = clock.elapsed
        if ended > programs and clock.elapsed < HORIZON_S:
            counted["awaited"] += awaited
            counted["prepared"] += environment.prepare_s
            counted["total"] += clock.elapsed - at
            counted["done"] += 1
        if clock.elapsed < HORIZON_S:
            arrive()
        lease.release()

    for _ in range(programs):
        arrive()
    clock.run_until(2 * HORIZON_S)  # until all have ended
    hours = (HORIZON_S - counted["since"]) / 3600
    return Hidden(
        programs, running, preparing, prepare_s, ahead, counted["awaited"] / counted["prepared"],
        counted["awaited"] / counted["total"], counted["done"] / hours,
    )  # fmt: skip


# --- the same, live ---


@dataclass
class Live:
    programs: int
    running: int
    prepare_s: float
    ahead: bool
    awaited_share: float
    wall_s: float


async def live(home: Path, ahead: bool, *, programs: int = 60, running: int = 6, prepare_s: float = 0.5) -> Live:
    rm = ResourceManager(
        pools={"default": {"lanes": running}},
        environments={"home": str(home), "preparing": 4, "kinds": {"box": {"provider": "slow"}}},
    )
    environments = Environments(rm, providers={"slow": Nothing(prepare_s)})
    awaited = prepared = 0.0
    ended = 0

    async def one(number: int) -> None:
        nonlocal awaited, prepared, ended
        async with environments.program(f"p{number}") as program:
            if ahead:
                program.prepare("box")
            async with rm.lease(agent=f"p{number}", tokens=0):
                at = time.monotonic()
                box = await program.environment_async("box")
                if ended >= running:  # steady: the first had nobody to wait behind
                    awaited += time.monotonic() - at
                    prepared += box.prepare_s
                await asyncio.sleep(1.0)
                ended += 1

    began = time.monotonic()
    await asyncio.gather(*(one(i) for i in range(programs)))
    took = time.monotonic() - began
    environments.close()
    await rm.aclose()
    return Live(programs, running, prepare_s, ahead, awaited / prepared, took)


def doctor(home: Path) -> str:
    command = [sys.executable, "-m", "agentrm", "doctor", "--environments", str(home), "--clean"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="storm,disk,hidden,live")
    arguments = parser.parse_args()
    only, found = arguments.only.split(","), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="agentrm-environments-") as folder:
        if "storm" in only:
            home = Path(folder) / "storm"
            result = storm(home, arguments.programs, arguments.seed, lambda: doctor(home))
            found["storm"] = {key: value for key, value in asdict(result).items() if key != "ids"}
            print(f"storm: {json.dumps(found['storm'], indent=2)}")
            assert not left_in(home) and not marked(result.ids), "something is left"
            assert result.control_is_fit, "the doctor touched what belongs to the living"
        if "disk" in only:
            found["disk"] = asdict(asyncio.run(disk(Path(folder) / "disk")))
            print(f"disk: {json.dumps(found['disk'], indent=2)}")
        if "live" in only:
            found["live"] = [asdict(asyncio.run(live(Path(folder) / "live", ahead))) for ahead in (False, True)]
            print(f"live: {json.dumps(found['live'], indent=2)}")
    if "hidden" in only:
        found["hidden"] = []
        for programs, prepare_s in zip((24, 48, 72, 96), PREPARE_S, strict=True):
            for ahead in (False, True):
                row = hidden(programs, programs * 2 // 3, max(2, programs // 12), prepare_s, ahead, arguments.seed)
                found["hidden"].append(asdict(row))
                print(row)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
