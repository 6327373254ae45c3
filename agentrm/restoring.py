"""Undoing `ContextVar.set` where the block may be left in another context than it was entered in."""

from __future__ import annotations

from contextvars import Token
from typing import Any

__all__ = ["restore"]


def restore(token: Token[Any]) -> bool:
    """Gives the token's variable back what it was before. False: this is another context than the one it was set in (a
    task collected after its loop died), where there is nothing to give back."""
    try:
        token.var.reset(token)
    except ValueError:
        return False
    return True
