"""How an object of LangChain becomes a gated one: a copy of it, of a subclass of its own class made for the
purpose.

The subclass has the name, module and schema of the user's class, so that `isinstance`, serialisation and
cache keys stay as they are; only the methods that reach the provider or run the tool differ. Those call the
method of the user's class on a *plain view* of the object: the same state under the user's class. What that
method calls on `self` is not gated again, so one call takes one lease however its class is built, and no
two calls of one object can be mistaken for one."""

from __future__ import annotations

import functools
import inspect
import threading
from abc import ABCMeta
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from agentrm.adapters import CallSpec, Identity, first_answers, read_options
from agentrm.identity import NOBODY
from agentrm_langchain.surroundings import NOWHERE, Surroundings, here

__all__ = ["Gate", "gate_of", "gated_copy", "like", "make_gate", "plain_view"]

T = TypeVar("T", bound=BaseModel)
Methods = Callable[[type, "Gate"], dict[str, Any]]

_MARK = "__agentrm_gate__"  # dunder: pydantic takes no notice of it
_PYDANTIC_STATE = ("__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")


class Gate:
    """One way into a manager: the manager, who is asking, and what differs from the configuration."""

    __slots__ = ("__weakref__", "_classes", "_lock", "_over", "arguments", "options", "rm")

    def __init__(self, rm: Any, arguments: Identity, options: dict[str, Any]) -> None:
        self.rm, self.arguments, self.options = rm, arguments, options
        self._classes: dict[type, type] = {}
        self._over: WeakKeyDictionary[Gate, Gate] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def spec(self, handed: Surroundings | None = None, **call: Any) -> CallSpec:
        """What is known about the call that begins here."""
        who, beat = here(self.arguments, handed or NOWHERE)
        return CallSpec(
            agent=who.agent,
            priority=who.priority,
            tenant=who.tenant,
            session=who.session,
            heartbeat=beat,
            **self.options,
            **call,
        )

    def over(self, inner: Gate) -> Gate:
        """This gate for an object that `inner` gates for the same manager: one gate, what this one says comes first."""
        if self.arguments == NOBODY and not self.options:
            return inner
        with self._lock:
            found = self._over.get(inner)
            if found is None:
                arguments = first_answers(self.arguments, inner.arguments)
                found = self._over[inner] = Gate(self.rm, arguments, {**inner.options, **self.options})
            return found

    def subclass(self, cls: type[BaseModel], methods: Methods) -> type:
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
                # Not through pydantic's metaclass, which would work out again the schema that `cls` has: 10 ms.
                found = self._classes[cls] = ABCMeta.__new__(type(cls), cls.__name__, (cls,), names)
            return found


def make_gate(rm: Any, where: str, given: dict[str, Any]) -> Gate:
    """From the keyword arguments of `where`: those of an identity, and `pool`, `wait_max`, `idle_s`,
    `run_s`, `guards`."""
    return Gate(rm, *read_options(where, given))


def like(native: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a method look like the one that it stands for. LangChain reads signatures, at every call: it finds this one
    at once instead of behind a wrapper."""

    def dress(method: Callable[..., Any]) -> Callable[..., Any]:
        dressed = functools.wraps(native)(method)
        dressed.__signature__ = inspect.signature(native)  # type: ignore[attr-defined]
        return dressed

    return dress


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
