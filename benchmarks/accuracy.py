"""How exactly a rate is kept: `python -m benchmarks.accuracy`, about a minute.

One caller and 200, threads and coroutines, through the whole manager at a limit of 100 per half second. For each:
the admitted rate against the limit, the fullest rolling window, how late a caller wakes after the moment at which its
request could be admitted, callers overtaken by an equal one, and the processor time spent while everybody waits.

The calls of 200 callers take 50 ms, as a short model call does, or no time: then a hundred fall due at one instant and
each asks for its next call before the one behind it can wake, so these rows show what a call costs. Beside them stands
how late a hundred bare locks and futures, released at one instant, wake whoever sleeps on them and does nothing else:
the interpreter's own share of the bar of 1 ms.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic_ns, process_time_ns

from agentrm import ResourceManager

AMOUNT, WINDOW_S, SECONDS = 100, 0.5, 4.0
BURST = 10  # of the bucket: what a late wake-up may catch up
CALL_S = 0.05
WINDOW_NS = int(WINDOW_S * 1e9)
BARS = {"rate_error": 0.005, "late_p50_ms": 1.0}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What one run showed. `most` is the largest number admitted within any window, `overtaken` counts pairs."""

    shape: str
    callers: int
    how: str
    call_s: float
    admitted: int
    rate_error: float
    most: int
    late_p50_ms: float
    late_p99_ms: float
    overtaken: int
    processor: float

    @property
    def good(self) -> bool:
        """Whether the bars are met."""
        exact = self.shape != "rolling" or self.most <= AMOUNT
        return (
            exact
            and not self.overtaken
            and abs(self.rate_error) <= BARS["rate_error"]
            and self.late_p50_ms <= BARS["late_p50_ms"]
        )


def _manager(shape: str) -> ResourceManager:
    limit: dict[str, float] = {"requests": AMOUNT} if shape == "rolling" else {"tokens": AMOUNT, "burst": BURST}
    limit["per"] = WINDOW_S
    return ResourceManager(pools={"default": {"lanes": 1_000, "limits": [limit]}})


def _run(how: str, rm: ResourceManager, callers: int, call_s: float) -> list[int]:
    """When each call ran, as its caller saw it: they ask again and again for `SECONDS`."""
    woken: list[int] = []
    end = monotonic_ns() + int(SECONDS * 1e9)

    def once() -> bool:
        with rm.lease(tokens=1):
            woken.append(monotonic_ns())
            if call_s:
                time.sleep(call_s)
        return monotonic_ns() < end

    async def forever() -> None:
        while monotonic_ns() < end:
            async with rm.lease(tokens=1):
                woken.append(monotonic_ns())
                if call_s:
                    await asyncio.sleep(call_s)

    async def together() -> None:
        await asyncio.gather(*(forever() for _ in range(callers)))

    if how == "async":
        asyncio.run(together())
        return woken
    threads = [threading.Thread(target=lambda: all(iter(once, False))) for _ in range(callers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return woken


def _order(rm: ResourceManager) -> tuple[list[int], int]:
    """(times of the grants, pairs of neighbours granted against their order of arrival), from the kernel's events."""
    events = rm.kernel.events(0, 100_000)
    asked = {e.handle: e.seq for e in events if e.kind == "submit"}
    grants = [e for e in events if e.kind == "grant"]
    order = [asked[e.handle] for e in grants if e.handle in asked]
    return [e.time_ns for e in grants], sum(a > b for a, b in zip(order, order[1:], strict=False))


def _most(times: list[int]) -> int:
    """The largest number of grants in any window. The kernel's clock counts in microseconds."""
    most = first = 0
    for last, t in enumerate(times):
        while t - times[first] >= WINDOW_NS:
            first += 1
        most = max(most, last - first + 1)
    return most


def measure(shape: str, how: str, callers: int, call_s: float) -> Accuracy:
    rm = _manager(shape)
    before, start = process_time_ns(), monotonic_ns()
    woken = sorted(_run(how, rm, callers, call_s))
    spent, took = process_time_ns() - before, monotonic_ns() - start
    times, overtaken = _order(rm)
    rm.close()
    if shape == "rolling":  # a call can run when the one AMOUNT before it has left the window
        late = [(w - t - WINDOW_NS) / 1e6 for w, t in zip(woken[AMOUNT:], times, strict=False)]
    else:
        gap = WINDOW_NS / AMOUNT  # after the burst a token comes with each gap
        late = [(w - times[0] - (i - BURST + 1) * gap) / 1e6 for i, w in enumerate(woken) if i >= BURST]
    late.sort()
    skip = AMOUNT if shape == "rolling" else BURST
    steady = times[skip:]
    whole = (len(steady) - 1) // AMOUNT * AMOUNT  # of whole windows, so that where it begins does not matter
    rate = whole / (steady[whole] - steady[0]) * 1e9
    return Accuracy(
        shape, callers, how, call_s, len(times), rate / (AMOUNT / WINDOW_S) - 1, _most(times),
        statistics.median(late), late[len(late) * 99 // 100], overtaken, spent / took,
    )  # fmt: skip


def floor_of_threads(rounds: int = 15) -> float:
    """Median lateness in ms of `AMOUNT` threads, each asleep on a lock of its own, all released at one instant."""
    late: list[int] = []
    for _ in range(rounds):
        locks = [threading.Lock() for _ in range(AMOUNT)]
        woken: list[int] = []

        def sleep(lock: threading.Lock, woken: list[int] = woken) -> None:
            lock.acquire()
            woken.append(monotonic_ns())
            lock.acquire()  # as a caller that asks again

        for lock in locks:
            lock.acquire()
        threads = [threading.Thread(target=sleep, args=(lock,)) for lock in locks]
        for t in threads:
            t.start()
        time.sleep(0.05)
        released = monotonic_ns()
        for lock in locks:
            lock.release()
        time.sleep(0.05)
        for lock in locks:
            lock.release()
        for t in threads:
            t.join()
        late += [at - released for at in woken]
    return statistics.median(late) / 1e6


async def floor_of_tasks(rounds: int = 15) -> float:
    """The same of tasks, each on a future."""
    late: list[int] = []
    loop = asyncio.get_running_loop()
    for _ in range(rounds):
        futures = [loop.create_future() for _ in range(AMOUNT)]
        woken: list[int] = []

        async def sleep(future: asyncio.Future[None], woken: list[int] = woken) -> None:
            await future
            woken.append(monotonic_ns())

        tasks = [asyncio.ensure_future(sleep(future)) for future in futures]
        await asyncio.sleep(0.05)
        released = monotonic_ns()
        for future in futures:
            future.set_result(None)
        await asyncio.gather(*tasks)
        late += [at - released for at in woken]
    return statistics.median(late) / 1e6


def large_request() -> tuple[float, float]:
    """(seconds that a request of 40 tokens waited among 20 callers of one token each at 50 a second, the bound)."""
    rm = ResourceManager(pools={"default": {"lanes": 100, "limits": [{"tokens": 50, "per": 1, "burst": 50}]}})
    bound = rm.layout.kernel.backfill_s + 40 / 50 + 0.1

    async def small(stop: Callable[[], bool]) -> None:
        while not stop():
            async with rm.lease(agent="small", tokens=1):
                pass

    async def work() -> float:
        served: list[int] = []
        crowd = [asyncio.ensure_future(small(lambda: bool(served))) for _ in range(20)]
        await asyncio.sleep(1.5)  # the full bucket is gone
        asked = monotonic_ns()
        async with rm.lease(agent="large", tokens=40):
            served.append(monotonic_ns())
        await asyncio.gather(*crowd)
        return (served[0] - asked) / 1e9

    waited = asyncio.run(work())
    rm.close()
    return waited, bound


def main() -> None:
    rows = []
    print("shape    callers how    call ms  admitted  rate error  most  late p50   p99 ms  overtaken  processor")
    cases = itertools.product(("rolling", "bucket"), ("async", "sync"), ((1, 0.0), (200, CALL_S), (200, 0.0)))
    for shape, how, (callers, call_s) in cases:
        a = measure(shape, how, callers, call_s)
        rows.append(a)
        print(
            f"{a.shape:8} {a.callers:7} {a.how:6} {a.call_s * 1e3:7.0f} {a.admitted:9} {a.rate_error:+10.3%} "
            f"{a.most:6} {a.late_p50_ms:8.3f} {a.late_p99_ms:8.3f} {a.overtaken:10} {a.processor:9.1%}  "
            f"{'met' if a.good else 'MISSED'}",
            flush=True,
        )
    bare = {"async": asyncio.run(floor_of_tasks()), "sync": floor_of_threads()}
    print(f"{AMOUNT} bare sleepers released at once: late p50 {bare['async']:.3f} ms async, {bare['sync']:.3f} ms sync")
    waited, bound = large_request()
    print(f"a large request among small ones waited {waited:.2f} s; bound {bound:.2f} s")
    doc = {
        "amount": AMOUNT, "window_s": WINDOW_S, "call_s": CALL_S,
        "bars": BARS, "results": [asdict(a) | {"good": a.good} for a in rows],
        "bare_late_p50_ms": bare,
        "large_request": {"waited_s": waited, "bound_s": bound},
    }  # fmt: skip
    (Path(__file__).parent / "ACCURACY.json").write_text(json.dumps(doc, indent=1) + "\n")


if __name__ == "__main__":
    main()
