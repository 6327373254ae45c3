"""How the lease of one attempt begins and ends, the same for calls and streams, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentrm.adapters.spec import CallSpec
from agentrm.adapters.usage import Meter, Usage
from agentrm.errors import AgentRMError
from agentrm.limits.errors import OutputLimit
from agentrm.limits.headers import read_headers
from agentrm.limits.provider_errors import ProviderError

if TYPE_CHECKING:
    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["admit", "charge", "fail", "new_lease", "observe", "progress", "settle"]

_MOST_OUTPUT = 1_000_000_000
"""No reply is longer: a limit beyond says that there is none."""


def new_lease(
    rm: ResourceManager,
    spec: CallSpec,
    on_reap: Callable[[Any, AgentRMError], None] | None = None,
    *,
    again: bool = False,
    streams: bool = False,
) -> Lease:
    """The lease for one attempt, not yet asked for. A call that is tried `again` keeps its place before new
    ones."""
    limit = spec.max_output_tokens
    if limit is not None and limit > _MOST_OUTPUT:
        limit = None
    lease = rm.lease(
        agent=spec.agent,
        priority=spec.priority,  # type: ignore[arg-type]  # the manager looks at it
        tenant=spec.tenant,
        session=spec.session,
        kind=spec.kind,
        pool=spec.pool,
        model=spec.model,
        tool=spec.tool,
        input_tokens=spec.input_tokens,
        max_output_tokens=limit,
        wait_max=spec.wait_max,
        idle_s=spec.idle_s,
        run_s=spec.run_s,
        on_reap=on_reap,
        resumed=again,
        streams=streams or spec.streams,
    )
    lease.on_wait = spec.on_wait
    return lease


async def admit(lease: Lease, spec: CallSpec) -> None:
    """Waits for the grant on an event loop, with the framework's heartbeat meanwhile."""
    beat = spec.heartbeat
    if beat is None:
        await lease.acquire_async()
        return
    loop = asyncio.get_running_loop()

    timer: asyncio.TimerHandle

    def again() -> None:
        nonlocal timer
        beat()
        timer = loop.call_later(spec.beat_s, again)

    again()
    try:
        await lease.acquire_async()
    finally:
        timer.cancel()
    try:
        beat()
    except BaseException:  # it is granted already
        lease.release()
        raise


def settle(rm: ResourceManager, lease: Lease, spec: CallSpec, result: Any) -> None:
    """Ends the lease of a call that returned, whatever the spec's readers of the result raise. After a reap this ends
    the zombie and changes nothing else."""
    try:
        try:
            observe(rm, lease, spec, result)
        finally:
            if spec.kind == "model":
                charge(lease, _used(spec, result))
    finally:
        lease.release()


def observe(rm: ResourceManager, lease: Lease, spec: CallSpec, result: Any) -> None:
    """Lets the provider's own account of what is left correct the limits of the pool."""
    if spec.headers is not None and (headers := spec.headers(result)):
        rm.observe_headers(lease, read_headers(headers))


def charge(lease: Lease, usage: Usage) -> None:
    """Corrects what was reserved; the lease still runs."""
    if usage.free:
        lease.refund()
        return
    usage = usage.checked()
    lease.settle(usage.input_tokens, usage.output_tokens, cached_tokens=usage.cached_tokens)


def progress(lease: Lease, meter: Meter, chunk: Any) -> None:
    """Takes a chunk into account: a heartbeat, and the length of the reply where it is limited. Raises OutputLimit with
    the chunks before this one in `partial`."""
    grew = meter.add(chunk)
    if not (grew and lease.limits_output):  # a frame that only reports the use comes when all is said
        lease.heartbeat()
        return
    try:
        lease.heartbeat(output_tokens=meter.output_tokens, estimated=meter.is_estimate)
    except OutputLimit as error:
        error.partial = tuple(meter.kept)
        raise
    meter.kept.append(chunk)


def _used(spec: CallSpec, result: Any) -> Usage:
    """As reported, else estimated, never zero unless it was free."""
    usage = spec.usage(result)
    if usage is not None and (usage.free or (usage.input_tokens and usage.output_tokens)):
        return usage
    inputs, outputs, cached = (0, 0, 0) if usage is None else usage[:3]
    return Usage(inputs or spec.input_tokens or 1, outputs or max(1, spec.size(result)), cached, True)


def fail(lease: Lease, spec: CallSpec, error: BaseException) -> ProviderError | None:
    """Ends the lease of work that raised or was cancelled. A model call's error tells the scope; a tool's
    own errors are the tool's and say nothing about a provider of the pool."""
    problem: ProviderError | None = None
    try:
        if spec.kind == "model" and not lease.reaped:
            problem = lease.fail(error)
    finally:
        lease.release()
    return problem
