"""The kernel from Python: enqueue, decide, account and dequeue in two calls, with an object for each call."""

from __future__ import annotations

from collections.abc import Callable

from agentrm.core.kernel import Kernel, KernelConfig, Limit, Pool
from agentrm.core.port import Port, Tap
from benchmarks import sizes
from benchmarks.measure import Round, each, together, whole

REQUESTS = Limit("requests", "rolling", 1_000_000, 0.05)
TOKENS = Limit("tokens", "bucket", 1_000_000_000, 1.0, 1_000_000_000)
TOKENS_A_CALL = 10
SETTLED = TOKENS_A_CALL << 2


class Traffic:
    """A pool with a rolling request limit, a token bucket, all lanes busy and calls waiting behind them."""

    def __init__(
        self, waiting: int, *, lanes: int = 1, tenants: int = 1, agents: int = 1, policy: str = "mlfq", room: int = 64
    ) -> None:
        self.tickets = tickets = 1 << (waiting + lanes + room).bit_length()
        config = KernelConfig(
            limits=(REQUESTS, TOKENS),
            pools=(Pool(lanes=lanes, limits=(0, 1), max_queued=tickets, policy=policy),),
            tickets=tickets,
            agents=max(16, tenants * agents),
            tenants=max(16, tenants),
        )
        self.kernel = Kernel(config)
        self.port = Port(self.kernel, tickets)
        scope = self.kernel.scope("model", 0)
        self.callers = []
        for t in range(tenants):
            tenant = self.kernel.tenant(f"tenant {t}", 1.0)
            self.callers += [self.kernel.agent(f"agent {a}", tenant, 1.0) << 16 | scope << 40 for a in range(agents)]
        self.objects: dict[int, object] = {}
        self.running: list[int] = []
        for i in range(lanes + waiting):
            rc = self.port.enter(self.callers[i % len(self.callers)] | 1 << 10, TOKENS_A_CALL)
            if rc < 0:
                raise RuntimeError(f"call {i} was refused with {rc}")
            self.objects[rc >> 1] = object()
            if rc & 1:
                self.running.append(rc >> 1)

    def cycles(self, n: int) -> None:
        """n times: one more call comes, one ends, and the next one runs."""
        enter, leave, objects, callers = self.port.enter, self.port.leave, self.objects, self.callers
        take = objects.pop
        handle = self.running.pop()
        who, many = callers[0] | 1 << 10, len(callers) > 1
        for i in range(n):
            if many:
                who = callers[i % len(callers)] | 1 << 10
            objects[enter(who, 10) >> 1] = object()
            take(handle, None)  # of two threads the second may be told of a call before the first has filed it
            handle = leave(handle, 40)
        self.running.append(handle)


def cycle() -> Round:
    traffic = Traffic(sizes.WAITING)
    return lambda: whole(lambda: traffic.cycles(sizes.CYCLES), sizes.CYCLES)


def _threads(count: int, busy: bool) -> Round:
    traffic = Traffic(sizes.WAITING, lanes=count)

    def worker(go: Callable[[], bool]) -> int:
        n = 0
        while go():
            traffic.cycles(sizes.STRIDE)
            n += sizes.STRIDE
        return n

    return lambda: together(worker, count, sizes.SECONDS, busy=busy)


def try_acquire() -> Round:
    kernel = Kernel(KernelConfig(limits=(REQUESTS, TOKENS)))
    port = Port(kernel, 16_384)
    tap = Tap(port, 0)
    if tap.try_acquire() != 1:
        raise RuntimeError("the limit gave nothing")
    return lambda: each(tap.try_acquire, sizes.TRIES)


def decide() -> Round:
    """At depth 1,000: one more call is queued and the most important one chosen."""
    traffic = Traffic(sizes.DEPTH)
    return lambda: whole(lambda: traffic.cycles(sizes.CYCLES), sizes.CYCLES)


def inversions(depth: int) -> tuple[int, int]:
    """(pairs served against their class, pairs) when `depth` calls of mixed classes wait and are served in turn."""
    traffic = Traffic(0, policy="priority", room=depth)
    port, who = traffic.port, traffic.callers[0]
    classes = {}
    for i in range(depth):
        handle = port.enter(who | (i * 7919 % 3) << 10, TOKENS_A_CALL) >> 1
        classes[handle] = i * 7919 % 3
    served = []
    handle = port.leave(traffic.running[0], SETTLED)
    while handle > 0:
        served.append(classes[handle])
        handle = port.leave(handle, SETTLED)
    if len(served) != depth:
        raise RuntimeError(f"{len(served)} of {depth} calls were served")
    return inverted(served), depth * (depth - 1) // 2


def inverted(order: list[int]) -> int:
    """Pairs of which the less important one came first."""
    return sum(order[i] > x for k, x in enumerate(order) for i in range(k))


CASES = {
    "kernel-cycle": cycle,
    "kernel-cycle-8-threads": lambda: _threads(8, False),
    "kernel-cycle-busy-thread": lambda: _threads(1, True),
    "try-acquire": try_acquire,
    "enqueue-decide-1000": decide,
}
