"""What is raised when a budget, a limit of one reply or a guard against runaway agents stops work."""

from __future__ import annotations

from typing import Any

from agentrm.errors import AdmissionError, AgentRMError, LeaseError

__all__ = ["BudgetExceeded", "LoopDetected", "OutputLimit", "PriceUnknown", "SpawnRefused", "StepLimit"]


class BudgetExceeded(AdmissionError):
    """A call does not fit into what is left of a budget; nothing was sent and nothing is reserved.

    `budget` is its name (`tenant.research`), `kind` what is used up (calls, tokens, usd or wall_s). `spent`,
    `reserved` (by calls that have not ended), `asked` and `limit` are in that kind's unit. `renews_in_s` is None if
    it never does. """

    def __init__(
        self,
        message: str,
        *,
        budget: str,
        kind: str,
        spent: float,
        reserved: float,
        asked: float,
        limit: float,
        renews_in_s: float | None,
        **call: Any,
    ) -> None:
        super().__init__(message, retry_after=renews_in_s, **call)
        self.budget, self.kind, self.limit = budget, kind, limit
        self.spent, self.reserved, self.asked, self.renews_in_s = spent, reserved, asked, renews_in_s


class PriceUnknown(AdmissionError):
    """A budget of money binds the call and no price is known for its `model`; nothing was sent."""

    def __init__(self, message: str, *, model: str | None, budget: str, **call: Any) -> None:
        super().__init__(message, **call)
        self.model, self.budget = model, budget


class OutputLimit(LeaseError):
    """A reply was cut while it was streamed: it passed `limit` output tokens, `produced` had come.

    `partial` holds the chunks that came before the limit, where the stream was read by an adapter. `budget` names
    the budget that had no more to give, None if the limit was the call's own `max_output_tokens`. """

    def __init__(self, message: str, *, limit: int, produced: int, budget: str | None, **call: Any) -> None:
        super().__init__(message, **call)
        self.limit, self.produced, self.budget = limit, produced, budget
        self.partial: tuple[Any, ...] = ()


class LoopDetected(AgentRMError):
    """An agent makes the same calls over and over and gets the same results: the next one was not made.

    `cycle` are the calls as (agent, name), `repeats` how often they were made.
    """

    def __init__(self, message: str, *, agent: str, cycle: tuple[tuple[str, str], ...], repeats: int) -> None:
        super().__init__(message)
        self.agent, self.cycle, self.repeats = agent, cycle, repeats


class SpawnRefused(AgentRMError):
    """An agent may not start another one. `limit` is depth, live or total, `allowed` how many there may be.

    The text is written for the asking agent: it can be handed to it as the result of its attempt. Only for `live`
    waiting can help (`is_retryable`).
    """

    def __init__(self, message: str, *, agent: str, limit: str, allowed: int) -> None:
        super().__init__(message)
        self.agent, self.limit, self.allowed = agent, limit, allowed
        self.is_retryable = limit == "live"


class StepLimit(AgentRMError):
    """An agent made `steps` steps without an end. `transcript` is what was recorded of them, the work so far."""

    def __init__(self, message: str, *, agent: str, steps: int, transcript: tuple[Any, ...]) -> None:
        super().__init__(message)
        self.agent, self.steps, self.transcript = agent, steps, transcript
