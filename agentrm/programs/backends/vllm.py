"""vLLM's OpenAI server: signals from `/metrics`, priorities where it schedules by them, flush and abort in dev mode.

Names as in vLLM 0.32 and 0.33. With data parallelism every engine has lines of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrm.programs.backends.metrics_text import Metrics, Sample
from agentrm.programs.backends.protocol import Backend, Capabilities, Signals

__all__ = ["VLLM"]


class VLLM(Backend):
    """`settings.priority`: it runs with `--scheduling-policy priority`. `settings.admin`: with
    `VLLM_SERVER_DEV_MODE=1`, which must not be reachable by strangers."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            priority="low-first" if self.settings.priority else None,
            abort=self.settings.admin,
            flush=self.settings.admin,
        )

    async def signals(self) -> Signals:
        reply = await self.transport.request("GET", "/metrics")
        if reply.status != 200:  # metrics are off: health is all that is left to ask for
            health = await self.transport.request("GET", "/health")
            return Signals(healthy=health.status == 200)
        return read(reply.body.decode("utf-8", "replace"))

    async def open(self, program: str, priority: int) -> Mapping[str, Any]:
        return {"priority": priority} if self.settings.priority else {}

    async def abort(self, request: str) -> bool:
        if not self.settings.admin:
            return False
        reply = await self.transport.request("POST", "/abort_requests", {"request_ids": [request]})
        return reply.status == 200

    async def flush(self) -> bool:
        if not self.settings.admin:
            return False
        return (await self.transport.request("POST", "/reset_prefix_cache")).status == 200


def read(text: str) -> Signals:
    """The signals on a page of vLLM's metrics."""
    metrics = Metrics(text)
    usage = metrics.all("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    configs = metrics.all("vllm:cache_config_info")
    return Signals(
        healthy=True,
        running=metrics.total("vllm:num_requests_running"),
        waiting=metrics.total("vllm:num_requests_waiting"),
        kv_used=metrics.mean("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        capacity=_capacity(configs, len(usage) or 1),
        block=max((_whole(config.labels.get("block_size", "")) for config in configs), default=0) or None,
        hit_tokens=metrics.total("vllm:prefix_cache_hits"),
        query_tokens=metrics.total("vllm:prefix_cache_queries"),
        preempted=metrics.total("vllm:num_preemptions"),
        engines=len(usage) or None,
    )


def _capacity(configs: list[Sample], engines: int) -> int | None:
    """Tokens of all engines together, without the one block that each keeps as a placeholder; unknown as soon as one
    engine's share is."""
    if len(configs) != engines:
        return None
    total = 0
    for config in configs:
        size, block, blocks = (
            _whole(config.labels.get(name, "")) for name in ("kv_cache_size_tokens", "block_size", "num_gpu_blocks")
        )
        if not (size or block * blocks):
            return None
        total += max(0, (size or block * blocks) - block)
    return total


def _whole(text: str) -> int:
    """A whole number; 0 for what is none, or has more digits than any engine's memory."""
    return int(text) if text.isdecimal() and len(text) <= 15 else 0
