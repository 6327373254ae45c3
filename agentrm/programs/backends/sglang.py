"""SGLang's server: signals from `/metrics` (`--enable-metrics`), priorities, abort by request id, flush.

Names as in SGLang 0.5.23, read from its source.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from agentrm.programs.backends.metrics_text import Metrics
from agentrm.programs.backends.protocol import Backend, Capabilities, Signals

__all__ = ["SGLang"]

MOST_URGENT = 100
"""The engine serves high numbers first: ours are counted down from here."""


class SGLang(Backend):
    """`settings.priority`: it runs with `--enable-priority-scheduling`, high values first, which is its default.
    `settings.admin`: its administrative endpoints may be used."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            priority="high-first" if self.settings.priority else None,
            abort=self.settings.admin,
            flush=self.settings.admin,
        )

    async def signals(self) -> Signals:
        reply = await self.transport.request("GET", "/metrics")
        if reply.status == 200:
            found = read(reply.body.decode("utf-8", "replace"))
            if found.running is not None:
                return found
        health = await self.transport.request("GET", "/health")
        capacity, block = await self._stated("max_total_num_tokens", "page_size")
        return Signals(healthy=health.status == 200, capacity=capacity, block=block)

    async def _stated(self, *names: str) -> list[int | None]:
        """The numbers above 0 that the engine states under these names."""
        reply = await self.transport.request("GET", "/server_info")
        try:
            stated = json.loads(reply.body) if reply.status == 200 else {}
        except (ValueError, RecursionError):  # an answer of another shape says nothing
            stated = {}
        found = [stated.get(name) if isinstance(stated, dict) else None for name in names]
        return [one if isinstance(one, int) and one > 0 else None for one in found]

    async def open(self, program: str, priority: int) -> Mapping[str, Any]:
        return {"priority": MOST_URGENT - priority} if self.settings.priority else {}

    async def abort(self, request: str) -> bool:
        if not self.settings.admin:
            return False
        reply = await self.transport.request("POST", "/abort_request", {"rid": request})
        return reply.status == 200

    async def flush(self) -> bool:
        """Refused by the engine while requests run."""
        if not self.settings.admin:
            return False
        return (await self.transport.request("POST", "/flush_cache")).status == 200


def read(text: str) -> Signals:
    """The signals on a page of SGLang's metrics. Every data-parallel rank has lines of its own."""
    metrics = Metrics(text)
    ranks = metrics.all("sglang:token_usage")
    capacity = metrics.total("sglang:max_total_num_tokens")
    pages = [sample.value for sample in metrics.all("sglang:page_size")]
    return Signals(
        healthy=True,
        running=metrics.total("sglang:num_running_reqs"),
        waiting=metrics.total("sglang:num_queue_reqs"),
        kv_used=metrics.mean("sglang:token_usage"),
        capacity=capacity if capacity else None,  # 0 stands there until the engine has measured its memory
        block=int(max(pages)) if pages and all(map(math.isfinite, pages)) else None,
        hit_tokens=metrics.total("sglang:cached_tokens_total"),
        query_tokens=metrics.total("sglang:prompt_tokens_total"),
        preempted=metrics.total("sglang:num_retracted_reqs"),
        engines=len(ranks) or None,
    )
