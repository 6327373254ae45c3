"""How an object of LangChain becomes a gated one: a copy of it, of a subclass of its own class made for the
purpose.

The subclass has the name, module and schema of the user's class, so that `isinstance`, serialisation and
cache keys stay as they are; only the methods that reach the provider or run the tool differ. Those call the
method of the user's class on a *plain view* of the object: the same state under the user's class. What that
method calls on `self` is not gated again, so one call takes one lease however its class is built, and no
two calls of one object can be mistaken for one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel

from agentrm.adapters import CallSpec, Identity, first_answers, identity_of
from agentrm_langchain.surroundings import Surroundings, here

__all__ = ["OPTIONS", "Gate", "gate_of", "gated_copy", "make_gate", "plain_view"]

T = TypeVar("T", bound=BaseModel)
Methods = Callable[[type, "Gate"], dict[str, Any]]

OPTIONS = ("pool", "wait_max", "idle_s", "run_s")
_MARK = "__agentrm_gate__"  # dunder: pydantic takes no notice of it
_PYDANTIC_STATE = ("__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")


class Gate:
    """One way into a manager: the manager, who is asking, and what differs from the configuration."""

    __slots__ = ("_classes", "_lock", "arguments", "base", "rm")

    def __init__(self, rm: Any, arguments: Identity, base: CallSpec) -> None:
        self.rm, self.arguments, self.base = rm, arguments, base
        self._classes: dict[type, type] = {}
        self._lock = threading.Lock()

    def spec(self, handed: Surroundings | None = None, **call: Any) -> CallSpec:
        """What is known about the call that begins here."""
        who, beat = here(self.arguments, handed or Surroundings())
        return replace(
            self.base,
            agent=who.agent,
            priority=who.priority,
            tenant=who.tenant,
            session=who.session,
            heartbeat=beat,
            **call,
        )

    def over(self, inner: Gate) -> Gate:
        """This gate for an object that `inner` gates for the same manager: one gate, what this one says
        comes first."""
        base = CallSpec(**{name: _either(self.base, inner.base, name) for name in OPTIONS})
        return Gate(self.rm, first_answers(self.arguments, inner.arguments), base)

    def subclass(self, cls: type, methods: Methods) -> type:
        with self._lock:
            found = self._classes.get(cls)
            if found is None:
                names = {
                    "__module__": cls.__module__,
                    "__qualname__": cls.__qualname__,
                    "__doc__": cls.__doc__,
                    _MARK: (self, cls),
                    **methods(cls, self),
                }
                found = self._classes[cls] = type(cls)(cls.__name__, (cls,), names)
            return found


def _either(outer: CallSpec, inner: CallSpec, name: str) -> Any:
    value = getattr(outer, name)
    return getattr(inner, name) if value is None else value


def make_gate(rm: Any, where: str, given: dict[str, Any]) -> Gate:
    """From the keyword arguments of `where`: those of an identity, and `pool`, `wait_max`, `idle_s`,
    `run_s`."""
    options = {name: value for name, value in given.items() if name in OPTIONS}
    who = {name: value for name, value in given.items() if name not in OPTIONS}
    return Gate(rm, identity_of(where, who), CallSpec(**options))


def gate_of(x: object) -> tuple[Gate, type] | None:
    """The gate of a gated object and the user's own class of it, None if it is not gated."""
    return getattr(type(x), _MARK, None)


def gated_copy(x: T, gate: Gate, methods: Methods) -> T:
    """`x` itself stays as it is. Gated for the same manager before, it is not gated twice."""
    cls = type(x)
    before = gate_of(x)
    if before is not None and before[0].rm is gate.rm:
        gate, cls = gate.over(before[0]), before[1]
    copy = x.model_copy()
    object.__setattr__(copy, "__class__", gate.subclass(cls, methods))
    return copy


def plain_view(x: BaseModel, cls: type) -> Any:
    """`x` as an object of the user's class `cls`, with the same state, not a copy of it."""
    view: Any = object.__new__(cls)
    object.__setattr__(view, "__dict__", x.__dict__)
    for name in _PYDANTIC_STATE:
        object.__setattr__(view, name, getattr(x, name, None))
    return view
