"""adaptive-rate-limiter: a request through its default (intelligent) scheduler, whose loop turns every 10 ms."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

from adaptive_rate_limiter import TEXT, DiscoveredBucket, ProviderInterface, RateLimitInfo, RequestMetadata
from adaptive_rate_limiter.backends.memory import MemoryBackend
from adaptive_rate_limiter.scheduler import RateLimiterConfig, StateManager, create_scheduler

from benchmarks import sizes
from benchmarks.measure import Round

DISTRIBUTION = "adaptive-rate-limiter"


class _Client:
    base_url = "http://127.0.0.1"
    timeout = 30.0

    def get_headers(self) -> dict[str, str]:
        return {}


class _Provider(ProviderInterface):
    name = "peer"

    async def discover_limits(self, force_refresh: bool = False, timeout: float = 30.0) -> dict[str, DiscoveredBucket]:
        return {"bucket": DiscoveredBucket(bucket_id="bucket", rpm_limit=10**6, tpm_limit=10**9)}

    def parse_rate_limit_response(self, headers: object, status_code: int | None = None, **_: object) -> RateLimitInfo:
        return RateLimitInfo(rpm_remaining=10**6, tpm_remaining=10**9, rpm_limit=10**6, tpm_limit=10**9)

    async def get_bucket_for_model(self, model_id: str, resource_type: str | None = None) -> str:
        return "bucket"


class _Classifier:
    async def classify(self, request_data: dict[str, object]) -> RequestMetadata:
        return RequestMetadata(request_id="0", model_id="model", resource_type=TEXT, estimated_tokens=10)


async def _call() -> str:
    return "reply"


def lease() -> Round:
    async def work() -> float:
        scheduler = create_scheduler(
            _Client(),
            "intelligent",
            RateLimiterConfig(),
            provider=_Provider(),
            classifier=_Classifier(),
            state_manager=StateManager(MemoryBackend()),
        )
        async with scheduler:
            start = perf_counter_ns()
            for i in range(sizes.SLOW // 4):
                request = RequestMetadata(request_id=f"{i}", model_id="model", resource_type=TEXT, estimated_tokens=10)
                await scheduler.submit_request(metadata=request, request_func=_call)
            return (perf_counter_ns() - start) / (sizes.SLOW // 4)

    return lambda: asyncio.run(work())


CASES = {"lease-async": lease}
