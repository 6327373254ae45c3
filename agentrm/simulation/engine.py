"""One inference engine: chunked prefill, continuous batching, a prefix cache. A fluid model, exact between events.

While nothing changes, every step takes

    step_s = fixed_s + per_sequence_s * sequences + per_token_s * their context + prefill chunk / prefill_tokens_per_s

and gives each decoding sequence one token. So somebody's long prefill slows everybody's decode, which is where
thrashing costs most ("ThunderAgent", arXiv 2602.13692, figure 6a). Prompts are computed in order of arrival. A request
starts when its prompt and answer fit beside those that run; what finished programs and idle ones left is overwritten,
least recently used first. Constants: `ENGINE`, the only set there is.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass

__all__ = ["ENGINE", "Engine", "EngineParameters", "Job"]


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """What an engine costs. Estimated ones are fitted to the published rows of mini-SWE with GLM-4.6 (FP8, 8 H100)."""

    fixed_s: float = 0.023
    """Estimated: a decode step with an empty batch (recorded on GLM-4.5 with one request: 0.0265 s)."""
    per_sequence_s: float = 2.0e-4
    """Estimated."""
    per_token_s: float = 1.0e-8
    """Estimated: reading a token of context."""
    prefill_tokens_per_s: float = 66_000.0
    """Estimated: published throughput times published misses is 33,000 to 41,000 under thrashing."""
    chunk_tokens: int = 8192
    """vLLM's default of `max_num_batched_tokens` for serving."""
    kv_tokens: int = 1_550_000
    """Estimated: GLM-4.6's knee lies between 48 and 72 programs of about 20,000 to 25,000 tokens."""


ENGINE = EngineParameters()


@dataclass(slots=True, eq=False)
class Job:
    """One request: `key` names the program whose cache it may use."""

    key: int
    prompt: int
    output: int
    reusable: int
    """Tokens of the prompt that equal the head of the program's previous context."""
    hit: int = 0
    left: float = 0.0
    """Prompt tokens that are still to be computed."""


class Engine:
    """Time is moved by `advance`; `next_event` says until when nothing changes by itself."""

    def __init__(self, parameters: EngineParameters, kv_tokens: int, shared_tokens: int = 0) -> None:
        self.parameters, self.shared_tokens = parameters, shared_tokens
        self.kv_tokens = kv_tokens - shared_tokens  # the head that all prompts have is there once
        self.now = 0.0
        self.cached: OrderedDict[int, int] = OrderedDict()  # idle contexts, oldest first
        self.next_use: dict[int, float] | None = None
        """With it, what is used latest is overwritten first (a bound: it knows the future)."""
        self.pinned_until: dict[int, float] = {}
        """Contexts that are overwritten only when nothing else is left."""
        self.waiting: deque[Job] = deque()
        self.running_tokens = 0
        self._cached_tokens = 0
        self._prefill: deque[Job] = deque()
        self._backlog = 0.0
        self._decoding: list[tuple[float, int, Job]] = []
        self._decoding_tokens = 0
        self._tokens = 0.0  # decoded per sequence since the beginning
        self._order = 0

    def submit(self, job: Job) -> None:
        self.waiting.append(job)
        self._start()

    def forget(self, key: int) -> None:
        """The program is over; its context is no longer wanted."""
        self._cached_tokens -= self.cached.pop(key, 0)

    @property
    def held_tokens(self) -> int:
        """What runs and what is cached."""
        return self.running_tokens + self._cached_tokens

    def _private(self, job: Job) -> int:
        return max(0, job.prompt - self.shared_tokens) + job.output

    def _start(self) -> None:
        while self.waiting:
            job = self.waiting[0]
            need = self._private(job)
            if self.running_tokens and self.running_tokens + need > self.kv_tokens:
                return
            if self._backlog >= self.parameters.chunk_tokens:
                return  # it is given memory when there is a step for it
            self.waiting.popleft()
            held = self.cached.pop(job.key, 0)
            self._cached_tokens -= held
            job.hit = min(job.prompt - 1, max(min(held + self.shared_tokens, job.reusable), self.shared_tokens))
            job.left = job.prompt - job.hit
            self.running_tokens += need
            self._evict()
            self._prefill.append(job)
            self._backlog += job.left

    def _evict(self) -> None:
        while self._cached_tokens and self.held_tokens > self.kv_tokens:
            key = self._victim()
            gone = min(self.cached[key], self.held_tokens - self.kv_tokens)
            self.cached[key] -= gone
            self._cached_tokens -= gone
            if not self.cached[key]:
                del self.cached[key]

    def _victim(self) -> int:
        if self.next_use is not None:
            known = self.next_use
            return max(self.cached, key=lambda k: known.get(k, math.inf))
        if self.pinned_until:
            for key in self.cached:
                if self.pinned_until.get(key, 0.0) <= self.now:
                    return key
        return next(iter(self.cached))

    def _step_s(self) -> tuple[float, float]:
        """(seconds of a step, prompt tokens computed in it)."""
        p = self.parameters
        n = len(self._decoding)
        chunk = min(float(p.chunk_tokens - min(n, p.chunk_tokens // 2)), self._backlog)
        step = p.fixed_s + p.per_sequence_s * n + p.per_token_s * self._decoding_tokens
        return step + chunk / p.prefill_tokens_per_s, chunk

    def next_event(self) -> float:
        """When a prompt is computed or an answer complete; `inf` if nothing runs."""
        if not self._decoding and not self._prefill:
            return math.inf
        step, chunk = self._step_s()
        soonest = math.inf
        if self._decoding:
            soonest = max(0.0, self._decoding[0][0] - self._tokens) * step
        if self._prefill:
            soonest = min(soonest, self._prefill[0].left * step / chunk)
        return self.now + soonest

    def advance(self, now: float) -> list[Job]:
        """Moves to `now`, at most `next_event()`; the requests that are complete."""
        passed = now - self.now
        self.now = now
        if passed > 0 and (self._decoding or self._prefill):
            step, chunk = self._step_s()
            self._tokens += passed / step
            done = min(passed * chunk / step, self._backlog)
            while self._prefill and done > 0:
                part = min(done, self._prefill[0].left)
                self._prefill[0].left -= part
                self._backlog -= part
                done -= part
                if self._prefill[0].left > 1e-6:
                    break
                self._begin(self._prefill.popleft())
        while self._prefill and self._prefill[0].left <= 1e-6:
            self._begin(self._prefill.popleft())
        finished = []
        while self._decoding and self._decoding[0][0] <= self._tokens + 1e-6:
            job = heapq.heappop(self._decoding)[2]
            self._decoding_tokens -= job.prompt
            self.running_tokens -= self._private(job)
            self.cached[job.key] = self._private(job)
            self.cached.move_to_end(job.key)
            self._cached_tokens += self._private(job)
            finished.append(job)
        if not self._prefill:
            self._backlog = 0.0
        self._start()
        return finished

    def _begin(self, job: Job) -> None:
        self._order += 1
        heapq.heappush(self._decoding, (self._tokens + job.output, self._order, job))
        self._decoding_tokens += job.prompt
