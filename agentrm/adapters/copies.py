"""How an object of a framework that is built on pydantic becomes a gated one: a subclass of its own class, made for
the purpose.

The subclass has the name, module and schema of the user's class, so that `isinstance`, serialisation and cache keys
stay as they are; only the methods that reach the provider or run the tool differ. Those may call the method of the
user's class on a *plain view* of the object: the same state under the user's class. What that method calls on `self`
is not gated again, so one call takes one lease however its class is built, and no two calls of one object can be
mistaken for one."""

from __future__ import annotations

import functools
import inspect
import threading
from abc import ABCMeta
from collections.abc import Callable, Mapping
from pickle import PicklingError
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agentrm.adapters.identity import Identity, first_answers
from agentrm.adapters.spec import CallSpec
from agentrm.errors import ConfigError
from agentrm.identity import NOBODY, current_identity
from agentrm.scheduling import ResourceManager

__all__ = ["Gate", "gate_of", "gated_copy", "is_over", "like", "plain_view", "turn"]

T = TypeVar("T")
G = TypeVar("G", bound="Gate")
Methods = Callable[[type, Any], dict[str, Any]]
"""What differs from the user's class, for a gate."""

_MARK = "__agentrm_gate__"  # dunder: pydantic takes no notice of it
_PYDANTIC_STATE = ("__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")


def is_over(rm: ResourceManager) -> bool:
    """Whether the manager makes no calls any more: it is closed, or was left behind by a fork."""
    return rm.gate.closing or rm.kernel.forked


class Gate:
    """One way into a manager: the manager, who is asking, and what differs from the configuration. `named`: what the
    framework calls the agent, which counts where nothing else says who asks.

    Raises ConfigError for what is no manager, and for a pool that it does not have."""

    __slots__ = ("__weakref__", "_classes", "_lasting", "_lock", "_over", "arguments", "named", "options", "rm")

    def __init__(self, rm: object, arguments: Identity, options: Mapping[str, Any], named: Identity = NOBODY) -> None:
        if not isinstance(rm, ResourceManager):
            raise ConfigError("rm", rm, "a manager, such as agentrm.ResourceManager()")
        if (pool := options.get("pool")) is not None and pool not in (known := rm.config.all_pools()):
            raise ConfigError("pool", pool, "one of " + ", ".join(known))
        self.rm, self.arguments, self.options, self.named = rm, arguments, options, named
        self._lasting = first_answers(arguments, named)
        self._classes: dict[type, type] = {}
        self._over: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def call(self, who: Identity, **call: Any) -> CallSpec:
        """A call that `who` makes through this gate."""
        agent, tenant, session, priority = who
        if self.options:
            call = {**self.options, **call}
        return CallSpec(agent=agent, tenant=tenant, session=session, priority=priority, **call)

    def spec(self, **call: Any) -> CallSpec:
        """What is known about the call that begins here."""
        return self.call(self.asking(current_identity()), **call)

    def asking(self, said: Identity) -> Identity:
        """Who makes a call round which that was said."""
        return self._lasting if said is NOBODY else first_answers(self.arguments, said, self.named)

    def replaces(self, inner: Gate) -> bool:
        """Whether what `inner` gates gets this gate in its place, not round it: they are of one manager, or that one's
        makes no calls any more."""
        return inner.rm is self.rm or is_over(inner.rm)

    def over(self: G, inner: G) -> G:
        """This gate for an object that `inner` gates and it `replaces`: one gate, what this one says comes first."""
        same = inner.rm is self.rm
        if inner is self or (same and self._lasting == NOBODY and not self.options):
            return inner
        arguments, options = first_answers(self.arguments, inner.arguments), {**inner.options, **self.options}
        named = first_answers(self.named, inner.named)
        if same and (arguments, options, named) == (inner.arguments, inner.options, inner.named):
            return inner
        with self._lock:
            found: G | None = self._over.get(inner)
            if found is None:
                found = self._over[inner] = type(self)(self.rm, arguments, options, named)
            return found

    def __deepcopy__(self: G, memo: object) -> G:
        """A copy of what is gated goes through the same manager."""
        return self

    def __reduce_ex__(self, _protocol: object) -> Any:
        raise _unpicklable("what is attached to a manager")

    def subclass(self, cls: type, methods: Methods) -> type:
        with self._lock:
            found = self._classes.get(cls)
            if found is None:
                names = {
                    "__module__": cls.__module__,
                    "__qualname__": cls.__qualname__,
                    "__doc__": cls.__doc__,
                    _MARK: (self, cls),
                    **({"__reduce_ex__": _reduce} if _copies_itself(cls) else {}),
                    **methods(cls, self),
                }
                # Not through pydantic's metaclass, which would work out again the schema that `cls` has: 10 ms.
                make = ABCMeta.__new__ if isinstance(cls, ABCMeta) else type.__new__
                found = self._classes[cls] = make(type(cls), cls.__name__, (cls,), names)
            return found


def _copies_itself(cls: type) -> bool:
    """Whether `copy` takes no notice of how it is pickled."""
    return hasattr(cls, "__copy__") and hasattr(cls, "__deepcopy__")


def _reduce(self: Any, _protocol: object) -> Any:
    raise _unpicklable(f"the {type(self).__qualname__} that is attached to a manager")


def _unpicklable(what: str) -> PicklingError:
    return PicklingError(
        f"{what} can't be pickled: the manager lives in this process. "
        "Pickle the object that was attached, and attach it where it is unpickled"
    )


def like(native: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a method look like the one that it stands for. Frameworks read signatures, at every call: they find this
    one at once instead of behind a wrapper."""

    def dress(method: Callable[..., Any]) -> Callable[..., Any]:
        dressed = functools.wraps(native)(method)
        dressed.__signature__ = inspect.signature(native)  # type: ignore[attr-defined]
        return dressed

    return dress


def gate_of(x: object) -> tuple[Any, type] | None:
    """The gate of a gated object and the user's own class of it, None if it is not gated."""
    return getattr(type(x), _MARK, None)


def gated_copy(x: T, gate: Gate, methods: Methods) -> T:
    """`x` itself stays as it is. Gated before for the same manager, or for one that is over, it is not gated twice."""
    copy: Any = x.model_copy()  # type: ignore[attr-defined]
    turn(copy, gate, methods)
    return copy  # type: ignore[no-any-return]


def turn(x: Any, gate: Gate, methods: Methods) -> None:
    """Gates `x` itself."""
    cls, before = type(x), gate_of(x)
    if before is not None and gate.replaces(before[0]):
        gate, cls = gate.over(before[0]), before[1]
    object.__setattr__(x, "__class__", gate.subclass(cls, methods))


def plain_view(x: Any, cls: type) -> Any:
    """`x` as an object of the user's class `cls`, with the same state, not a copy of it."""
    view: Any = object.__new__(cls)
    object.__setattr__(view, "__dict__", x.__dict__)
    for name in _PYDANTIC_STATE:
        object.__setattr__(view, name, getattr(x, name, None))
    return view
