"""Every error that agentrm raises on purpose.

Each one says what was asked, what the limit was and what to do. The texts avoid the words that agent frameworks
search error texts for when they decide to retry by themselves; whether a retry makes sense is in `is_retryable`
and `retry_after` instead.
"""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "AdmissionError",
    "AgentRMError",
    "BlockQuotaExceeded",
    "BlocksExhausted",
    "ConfigError",
    "ForkedError",
    "IdleTimeout",
    "KernelError",
    "LeaseError",
    "ManagerClosed",
    "QueueFull",
    "QueueTimeout",
    "RequestTooLarge",
    "RunTimeout",
    "ScopeClosed",
    "WorkCancelled",
    "WouldDeadlock",
]


class AgentRMError(Exception):
    """Base of all errors raised by agentrm itself (errors of providers and tools pass through unchanged). They can be
    copied and pickled, whatever their class is made with."""

    def __reduce__(self) -> tuple[object, ...]:
        return self.rebuilt, (self.args, self.__dict__)

    @classmethod
    def rebuilt(cls, args: tuple[object, ...], state: dict[str, object]) -> AgentRMError:
        """One with these `args` and attributes."""
        error = cls.__new__(cls, *args)
        error.args = args
        error.__dict__.update(state)
        return error


class ConfigError(AgentRMError, ValueError):
    """A configuration value that cannot work. Raised at construction, never later.

    `key` is the full dotted key, `value` what was given, `allowed` what is.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"{_cut(key)}: {shown(value)} is not allowed; allowed: {allowed}")

    @classmethod
    def missing(cls, key: str, needed: str) -> ConfigError:
        """For what has to be said and was not."""
        error = cls(key, None, needed)
        error.args = (f"{_cut(key)} is missing; needed: {needed}",)
        return error


def _cut(text: str) -> str:
    """At most about 200 characters that can be written anywhere."""
    text = text if len(text) <= 200 else f"{text[:150]}...{text[-40:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def shown(value: object) -> str:
    """A value in an error's text, whatever it is: its repr, cut where that is long."""
    try:
        return _cut(repr(value))
    except Exception as error:  # noqa: BLE001 - whatever a `repr` of the user's raises
        return f"a {type(value).__name__} (its repr failed: {type(error).__name__})"


class KernelError(AgentRMError):
    """The kernel refused an operation: a table of fixed size is full, or a handle is not valid."""


class ForkedError(AgentRMError):
    """A manager was used in a child process after `fork`. Create a new ResourceManager in the child."""


class _CallError(AgentRMError):
    def __init__(
        self,
        message: str,
        *,
        pool: str | None = None,
        agent: str | None = None,
        retry_after: float | None = None,
        is_retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.pool, self.agent = pool, agent
        self.retry_after, self.is_retryable = retry_after, is_retryable


class AdmissionError(_CallError):
    """A call was not admitted; nothing was sent and nothing is held.

    `retry_after` is in seconds (None if no time can be named), `is_retryable` says whether waiting can help.
    """


class QueueTimeout(AdmissionError, TimeoutError):
    """The call waited in the queue for longer than its `wait_max`."""


class QueueFull(AdmissionError):
    """The queue holds `waiting.max_queued` calls already."""


class RequestTooLarge(AdmissionError):
    """The call asks for more than a limit can ever give at once."""


class ScopeClosed(AdmissionError):
    """The provider refused the account or model for good (quota, billing, authentication)."""


class WorkCancelled(AdmissionError):
    """The work that the call belongs to was called off (`agentrm.cancellable`)."""


class AccessDenied(AdmissionError, PermissionError):
    """The manager's `authorise` hook refused the call."""


class WouldDeadlock(AdmissionError):
    """A nested tool call would wait for a call that waits for it. Trying again helps only where others caused it."""


class ManagerClosed(AdmissionError):
    """The manager is closing or closed and takes no new work."""


class BlocksExhausted(AdmissionError):
    """A KV block pool has fewer blocks that are free or cached than were asked for: `lacking` more must be released
    first. Nothing was taken."""

    def __init__(self, message: str, *, pool: str, lacking: int) -> None:
        super().__init__(message, pool=pool, is_retryable=True)
        self.lacking = lacking


class BlockQuotaExceeded(AdmissionError):
    """A quota of KV blocks allows `lacking` blocks fewer than were asked for; `of` is "agent" or "tenant". Nothing was
    taken."""

    def __init__(self, message: str, *, pool: str, agent: str | None, of: str, lacking: int) -> None:
        super().__init__(message, pool=pool, agent=agent, is_retryable=True)
        self.of, self.lacking = of, lacking


class LeaseError(_CallError):
    """A call that was running lost its lease."""


class RunTimeout(LeaseError, TimeoutError):
    """The call ran for longer than its run limit (`run_s`)."""


class IdleTimeout(LeaseError, TimeoutError):
    """The call made no progress (no chunk, no heartbeat) for longer than its idle limit (`idle_s`)."""
