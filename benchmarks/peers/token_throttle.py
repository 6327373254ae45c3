"""token-throttle: reserve and refund on requests and tokens, in memory. Needs Python 3.12: its own environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

from benchmarks import sizes
from benchmarks.measure import Round

DISTRIBUTION = "token-throttle"
REQUIREMENT = "token-throttle==14.0.0"
VERSION = "14.0.0, Python 3.12 or later"
HOME = Path(__file__).resolve().parents[1] / ".environments" / "token-throttle"

SCRIPT = """
import asyncio, sys
from time import process_time_ns
from token_throttle import MemoryBackendBuilder, PerModelConfig, Quota, RateLimiter, UsageQuotas
async def work(n):
    requests = Quota(metric="requests", limit=10**6, per_seconds=1)
    quotas = UsageQuotas([requests, Quota(metric="tokens", limit=10**9, per_seconds=1)])
    limiter = RateLimiter(PerModelConfig(quotas=quotas), backend=MemoryBackendBuilder())
    async def one():
        async with limiter.reserve({"requests": 1, "tokens": 10}, model="model") as handle:
            handle.set_actual_usage({"requests": 1, "tokens": 10})
    await one()
    start = process_time_ns()
    for _ in range(n):
        await one()
    print((process_time_ns() - start) / n)
    await limiter.aclose()
asyncio.run(work(int(sys.argv[1])))
"""


@cache
def _python() -> str:
    """An interpreter that has the library: this one's version if it serves, else a newer one that is installed."""
    found = HOME / "bin" / "python"
    if not found.exists():
        if sys.version_info >= (3, 12):
            venv.create(HOME, with_pip=True)
        else:
            installed = sorted(Path.home().glob(".pyenv/versions/3.1[2-9].*/bin/python"))
            newer = next((p for p in ("python3.12", "python3.13", *map(str, installed)) if _runs(p)), None)
            if newer is None:
                raise RuntimeError("needs Python 3.12 or later, and none is installed")
            subprocess.run([newer, "-m", "venv", str(HOME)], check=True)
    if subprocess.run([str(found), "-c", "import token_throttle"], capture_output=True).returncode:
        done = subprocess.run([str(found), "-m", "pip", "install", "-q", REQUIREMENT], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip could not install {REQUIREMENT}: {done.stderr.strip().splitlines()[-1]}")
    return str(found)


def _runs(python: str) -> bool:
    """Whether the name is an interpreter and not a shim for one that is not there."""
    return bool(shutil.which(python)) and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def lease() -> Round:
    python = _python()

    def work() -> float:
        done = subprocess.run([python, "-c", SCRIPT, str(sizes.SLOW)], capture_output=True, text=True, check=True)
        return float(done.stdout)

    return work


CASES = {"lease-async": lease}
