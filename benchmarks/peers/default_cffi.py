"""Our own core built with cffi's default, which gives up the GIL around every call: what csrc/build_core.py avoids.

Without the GIL two threads may be inside the kernel at once, so each thread is a participant of its own in a shared
arena. The core is compiled once, into `.environments`, from the sources beside this folder.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import runpy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import sizes
from benchmarks.measure import Round, together

DISTRIBUTION = None
VERSION = "this tree"
ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "benchmarks" / ".environments" / "default-cffi"
NAME = "agentrm.core._agentrm_core"


@cache
def _kernel() -> ModuleType:
    """agentrm.core.kernel once more, over the other build of the core."""
    import agentrm.core.config as config
    import agentrm.core.kernel as ours

    HOME.mkdir(parents=True, exist_ok=True)
    here = os.getcwd()
    os.chdir(HOME)  # the builder names its sources as seen from where it runs
    try:
        builder = runpy.run_path(str(ROOT / "csrc" / "build_core.py"))["builder"]
        built = builder("_released", hold_gil=False).compile(tmpdir=str(HOME))
    finally:
        os.chdir(here)
    core = _load("_released", built)
    names = (NAME, config.__name__)
    held = {name: sys.modules[name] for name in names}
    sys.modules[NAME] = core
    try:
        sys.modules[config.__name__] = _load("_config_released", config.__file__)
        return _load("_kernel_released", ours.__file__)
    finally:
        sys.modules.update(held)


def _load(name: str, path: str | None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, str(path))
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Participant:
    """One thread's way into the shared arena; `queued` of its calls wait."""

    def __init__(self, kernel: Any, who: int, queued: int) -> None:
        self.kernel, self.who = kernel, who
        self.running: list[int] = []
        for _ in range(queued):
            self._submit()

    def _submit(self) -> None:
        rc = self.kernel.submit(self.who, 10, self.now())
        if rc & 1:
            self.running.append(rc >> 1)
        self.running += self.kernel.granted()

    def now(self) -> int:
        return int(_kernel().clock_ns())

    def cycles(self, go: Callable[[], bool]) -> int:
        n, kernel = 0, self.kernel
        while go():
            if self.running:
                self._submit()
                kernel.settle(self.running.pop(), 40, self.now())
                self.running += kernel.granted()
                n += 1
            if not self.running and kernel.poll():
                self.running += kernel.granted()
        return n


def _threads(count: int, busy: bool) -> Round:
    k = _kernel()
    limits = (k.Limit("requests", "rolling", 1_000_000, 0.05), k.Limit("tokens", "bucket", 10**9, 1.0, 10**9))
    pools = (k.Pool(lanes=count, limits=(0, 1), max_queued=4_096),)
    config = k.KernelConfig(limits=limits, pools=pools, tickets=8_192, shared=True)
    memory = mmap.mmap(-1, k.lib.arm_size(k.arm_config(config)) + mmap.PAGESIZE)
    first = k.Kernel(config, memory)
    who = first.agent("agent", first.tenant("tenant", 1.0), 1.0) << 16 | 1 << 10 | first.scope("model", 0) << 40
    kernels = [first, *(k.Kernel(None, memory, attach=True) for _ in range(count - 1))]
    participants = [_Participant(x, who, sizes.WAITING // count) for x in kernels]

    def round_() -> float:
        free = list(participants)
        return together(lambda go: free.pop().cycles(go), count, sizes.SECONDS, busy=busy)

    return round_


CASES = {
    "kernel-cycle-8-threads": lambda: _threads(8, False),
    "kernel-cycle-busy-thread": lambda: _threads(1, True),
}
