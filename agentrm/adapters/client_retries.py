"""Turns off the retries of the provider's client inside a gated model.

The clients of OpenAI and Anthropic retry twice by themselves and sleep in between, with the lane in hand
and without asking anybody else's limit. The gate retries instead. Clients are found by what they can do
(`max_retries`, `with_options`), so that no client library is imported; a client that has neither keeps its
ways."""

from __future__ import annotations

from typing import Any

__all__ = ["without_client_retries"]


def without_client_retries(model: Any) -> bool:
    """Replaces the clients in the model's own state (pydantic's private one too); other models that share them are not
    touched. Whether there were any."""
    found = False
    for state in (vars(model), getattr(model, "__pydantic_private__", None) or {}):
        changed = {name: quiet for name, value in state.items() if (quiet := _quiet(value)) is not None}
        state.update(changed)
        found = found or bool(changed)
    return found


def _quiet(value: Any) -> Any:
    """The client, or the resource of one, without retries; None where there is nothing to turn off."""
    if _retries(value):
        return value.with_options(max_retries=0)
    owner = getattr(value, "_client", None)  # a resource such as `client.chat.completions`
    if owner is not None and _retries(owner):
        return type(value)(owner.with_options(max_retries=0))
    return None


def _retries(client: Any) -> bool:
    count = getattr(client, "max_retries", None)
    return isinstance(count, int) and count > 0 and callable(getattr(client, "with_options", None))
