"""What a plugin says about one call before it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from agentrm.adapters.guarding import ToolUse
from agentrm.adapters.usage import Usage, estimate_tokens, read_usage
from agentrm.errors import AgentRMError
from agentrm.limits.guards import Guards

__all__ = ["CallSpec", "Kind"]

Kind = Literal["model", "tool", "memory", "storage"]


class CallSpec(NamedTuple):  # and no frozen dataclass, which takes five times as long to make, for each call
    """One logical call: who makes it, of what, how large it will be, how its use is read.

    What is None is taken from `agentrm.identity` and the configuration. Times are seconds, sizes tokens.

    - `usage` reads the real use out of a result or a chunk (None: it says nothing), `size` estimates the
      tokens of one when nothing was reported. `usage_adds` is True where the use reported by the chunks of
      a stream adds up, False where each report covers all that came before.
    - `is_last`: whether a chunk is the last of its stream, for consumers that stop there and never ask for the end; the
      lane is free when it is handed out.
    - `streams`: the call shows progress by `heartbeat` of its lease at each chunk, so that a hang is found much sooner.
    - `headers`: the provider's response headers in a result or a stream's first chunk, where the framework keeps them:
      what they say is left of a limit corrects the pool's.
    - `retries`: whether a failure that can pass may be tried again here; None: model calls yes, all others
      no, because a tool may have acted before it failed.
    - `heartbeat` is called about every `beat_s` while the call is queued on an event loop.
    - `on_wait` is called with each future that the call waits for on an event loop before it runs, in the queue and
      between two attempts: a framework with a cancellation of its own cancels that.
    - `translate` turns an error of agentrm into the framework's own type of it.
    - `guards`: those of the task that the call belongs to; None: those in force here (`with rm.guard(...):`). `use`:
      what they look at; without it a call is not watched.
    - `key`: layers that see the same logical call and share a key share one lease. None: a model call
      within a call of the same model is the same call; calls of other kinds never are."""

    kind: Kind = "model"
    agent: str | None = None
    priority: str | None = None
    tenant: str | None = None
    session: str | None = None
    pool: str | None = None
    model: str | None = None
    tool: str | None = None
    input_tokens: int | None = None
    max_output_tokens: int | None = None
    wait_max: float | None = None
    idle_s: float | None = None
    run_s: float | None = None
    usage: Callable[[Any], Usage | None] = read_usage
    size: Callable[[Any], int] = estimate_tokens
    usage_adds: bool = False
    is_last: Callable[[Any], bool] | None = None
    streams: bool = False
    headers: Callable[[Any], Mapping[str, Any] | None] | None = None
    retries: bool | None = None
    heartbeat: Callable[[], object] | None = None
    beat_s: float = 0.1
    on_wait: Callable[[asyncio.Future[None]], object] | None = None
    translate: Callable[[AgentRMError], AgentRMError] | None = None
    guards: Guards | None = None
    use: ToolUse | None = None
    key: object = None

    @property
    def is_retried(self) -> bool:
        return self.kind == "model" if self.retries is None else self.retries

    def is_same_call(self, inner: CallSpec) -> bool:
        """Whether `inner`, begun within this call, is a deeper layer of this call and not a call of its
        own."""
        if self.kind != inner.kind:
            return False
        if self.key is not None or inner.key is not None:
            return self.key == inner.key
        return self.kind == "model" and self.model == inner.model

    def translated(self, error: AgentRMError) -> AgentRMError:
        return error if self.translate is None else self.translate(error)
