"""Time-outs of the reaper in the types that LangChain code catches and its retry middleware understands."""

from __future__ import annotations

from langchain_core.exceptions import LangChainException

from agentrm.errors import AgentRMError, IdleTimeout, RunTimeout

try:
    from langchain_core.exceptions import ModelTimeoutError
except ImportError:  # before langchain-core 1.7.5

    class ModelTimeoutError(LangChainException):  # type: ignore[no-redef]
        """Stands in for the class that later versions of langchain-core have."""


__all__ = ["ModelIdleTimeout", "ModelRunTimeout", "translate"]


class ModelRunTimeout(RunTimeout, ModelTimeoutError):
    """A model call ran for longer than its run limit."""


class ModelIdleTimeout(IdleTimeout, ModelTimeoutError):
    """A model call made no progress for longer than its idle limit, and neither did its one retry."""


def translate(error: AgentRMError) -> AgentRMError:
    """The LangChain twin of a time-out; every other error as it is."""
    for ours, theirs in ((RunTimeout, ModelRunTimeout), (IdleTimeout, ModelIdleTimeout)):
        if isinstance(error, ours) and not isinstance(error, theirs):
            return theirs(
                str(error),
                pool=error.pool,
                agent=error.agent,
                retry_after=error.retry_after,
                is_retryable=error.is_retryable,
            )
    return error
