"""The storm of `benchmarks.environments`: owners that run programs in environments, and are killed."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentrm import ResourceManager
from agentrm.tools import Environments, leftovers
from agentrm.tools.journal import Journal
from agentrm.tools.processes import marked

ENVIRONMENT_BYTES = 1_000_000
SETUP = ["sh", "-c", f"head -c {ENVIRONMENT_BYTES} /dev/zero | tr '\\0' x > blob"]
SERVER = ["sh", "-c", "trap '' TERM; while :; do sleep 30; done"]
KINDS = {"box": {"setup": SETUP, "server": SERVER}, "shared": {"server": SERVER, "share": "any"}}
OWNERS, AT_ONCE = 4, 4
ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Storm:
    """`killed`: owners ended with SIGKILL. `left_*`: what they had left before the doctor came. `control_is_fit`:
    whether the environment of an owner that lives all the time was left alone. `ids`: of all environments seen."""

    programs: int
    owners: int
    killed: int
    failed_programs: int
    left_entries: int
    left_processes: int
    left_bytes: int
    left_after_doctor: int
    processes_after_doctor: int
    doctor_s: float
    wall_s: float
    control_is_fit: bool
    ids: list[str] = field(default_factory=list)


def left_in(home: Path) -> list[str]:
    parts = [home / part for part in ("journal", "places")]
    return [f"{part.name}/{one}" for part in parts if part.is_dir() for one in os.listdir(part)]


def owner(home: str, first: int, last: int, seed: int) -> None:
    """One owner's programs, a few at a time; each says on a line that it began, and how it ended."""
    rng = random.Random(seed)
    rm = ResourceManager(environments={"home": home, "preparing": 2, "grace_s": 0.1, "kinds": KINDS})
    environments = Environments(rm, recover=False)  # what others left is the doctor's to remove here
    numbers = iter(range(first, last))
    lock = threading.Lock()

    def say(**what: object) -> None:
        with lock:
            print(json.dumps(what), flush=True)

    def programs() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            say(began=number)
            try:
                with environments.program(f"p{number}") as program:
                    program.prepare("box")
                    program.environment("shared")
                    box = program.environment("box")
                    box.run(["sh", "-c", "sleep 600 & wc -c < blob"], timeout=30)
                    if rng.random() < 0.2:
                        raise RuntimeError("the program failed")
            except RuntimeError:
                say(failed=number)

    threads = [threading.Thread(target=programs) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    environments.close()


def storm(home: Path, programs: int, seed: int, doctor: Callable[[], str]) -> Storm:
    rng, began_at = random.Random(seed), time.monotonic()
    control = ResourceManager(environments={"home": str(home), "grace_s": 0.1, "kinds": KINDS})
    control_box = control.environments.get("control", "box")
    begun: set[int] = set()
    failed = killed = owners = 0
    ids: set[str] = set()
    todo = list(range(0, programs, 25))
    running: dict[int, tuple[subprocess.Popen[str], int, int, float | None]] = {}
    while todo or running:
        while todo and len(running) < OWNERS:
            first = todo.pop(0)
            last = min(programs, first + 25)
            arguments = [sys.executable, "-m", "benchmarks.environments_storm", str(home), str(first), str(last)]
            one = subprocess.Popen([*arguments, str(rng.randrange(2**32))], stdout=subprocess.PIPE, text=True, cwd=ROOT)
            assert one.stdout is not None
            # most owners are killed somewhere in the middle of their work
            dies_at = time.monotonic() + rng.uniform(1.0, 12.0) if rng.random() < 0.8 else None
            running[one.stdout.fileno()] = (one, first, last, dies_at)
            owners += 1
        ready, _, _ = select.select(list(running), [], [], 0.05)
        ids |= {entry.place.id for entry in Journal(home).entries()}
        for fd in list(running):
            one, first, last, dies_at = running[fd]
            assert one.stdout is not None
            if dies_at is not None and time.monotonic() >= dies_at:
                one.kill()
                killed += 1
                dies_at = None
                running[fd] = (one, first, last, None)
            if fd in ready or one.poll() is not None:
                line = one.stdout.readline()
                if line:
                    said = json.loads(line) if line.endswith("\n") else {}
                    begun |= {said["began"]} if "began" in said else set()
                    failed += "failed" in said
                else:
                    one.wait()
                    del running[fd]
                    rest = [number for number in range(first, last) if number not in begun]
                    if rest:
                        todo.append(rest[0])
    left = leftovers(home)
    ids |= {one.entry.place.id for one in left}
    ids.discard(control_box.id)
    processes = sum(one.processes for one in left)
    at = time.monotonic()
    doctor()
    took = time.monotonic() - at
    control_is_fit = control_box.is_fit()
    after = [name for name in left_in(home) if control_box.id not in name]
    still = marked(ids)
    control.close()
    return Storm(
        len(begun), owners, killed, failed, len(left), processes, sum(one.disk_bytes for one in left), len(after),
        len(still), took, time.monotonic() - began_at, control_is_fit, sorted(ids),
    )  # fmt: skip


if __name__ == "__main__":
    owner(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
