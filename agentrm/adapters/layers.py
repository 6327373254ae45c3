"""Which call is being made right now, so that a second layer that sees it takes no second lease.

Middleware round a gated model, an async method that falls back to its sync twin: both are one logical call.
The first layer below the one that took the lease passes through; a second call below it (a model that asks
another one three times) is a call of its own, nested below the lease, so that it can't run beside the
lanes.

The variable is set round the inner call alone, never across a yield, and a layer that ended no longer
counts: tasks that copied the context and live on are calls of their own."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from agentrm.adapters.spec import CallSpec
from agentrm.restoring import restore

if TYPE_CHECKING:
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Layer", "is_inner_layer"]

_current: ContextVar[Layer | None] = ContextVar("agentrm_call_layer", default=None)


class Layer:
    """The outermost layer of one attempt of a call, from the grant of its lease to its end. `outer`: the one that it is
    within, of any manager."""

    __slots__ = ("live", "outer", "passed", "rm", "spec")

    def __init__(self, rm: ResourceManager, spec: CallSpec) -> None:
        self.rm, self.spec = rm, spec
        self.live, self.passed = True, False
        self.outer = _current.get()

    def around(self) -> _Around:
        """Round one call, one `next` or one await: what runs inside is within this layer."""
        return _Around(self)

    def end(self) -> None:
        self.live, self.outer = False, None  # or calls that each begin within the one before would keep all of them


class _Around:
    """A context manager; a class of its own because every call pays for it."""

    __slots__ = ("_layer", "_token")

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __enter__(self) -> None:
        self._token = _current.set(self._layer)

    def __exit__(self, *_: object) -> None:
        restore(self._token)


def is_inner_layer(rm: ResourceManager, spec: CallSpec) -> bool:
    """Whether the call that begins now is already under a lease of its own logical call. True once per
    layer."""
    outer = _current.get()
    while outer is not None and outer.rm is not rm:
        outer = outer.outer
    if outer is None or not outer.live or outer.passed or not outer.spec.is_same_call(spec):
        return False
    outer.passed = True
    return True
