"""One way into a manager: who asks, what differs from the configuration, and where its calls belong.

A dumped component keeps the manager's name, not the manager. `loading` says which managers are meant when it is
loaded again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from agentrm.adapters import CallSpec, Identity, read_options
from agentrm.adapters.copies import Gate as PlainGate
from agentrm.errors import ConfigError
from agentrm.identity import NOBODY, current_identity
from agentrm.scheduling import current_lease

__all__ = ["Caller", "Gate", "loading", "make_gate", "placed", "start"]

T = TypeVar("T")

_loading: ContextVar[Mapping[str, Any]] = ContextVar("agentrm_autogen_loading", default={})  # noqa: B039 - never changed


@contextmanager
def loading(*managers: Any) -> Iterator[None]:
    """The managers, told apart by their names, that gated components belong to which are loaded in this block."""
    token = _loading.set({rm.name: rm for rm in managers})
    try:
        yield
    finally:
        _loading.reset(token)


class Caller:
    """The context in which a team was last asked to run. A runtime that teams share runs their agents in the context of
    whoever started it: identity and enclosing lease of the team's caller would be lost there."""

    __slots__ = ("context",)

    def __init__(self) -> None:
        self.context: Context | None = None

    def remember(self, outer: Caller | None) -> None:
        nested_in_team = outer is not None and current_lease() is None
        self.context = outer.context if outer is not None and nested_in_team else copy_context()


class Gate(PlainGate):
    """A way into a manager. `caller`: where the calls of a team belong whose runtime is shared."""

    __slots__ = ("caller",)

    def __init__(
        self,
        rm: Any,
        arguments: Identity,
        options: Mapping[str, Any],
        named: Identity = NOBODY,
        caller: Caller | None = None,
    ) -> None:
        super().__init__(rm, arguments, options, named)
        self.caller = caller

    def spec(self, **call: Any) -> CallSpec:
        """What is known about the call that begins here."""
        context = None if self.caller is None else self.context()
        said = current_identity() if context is None else context.run(current_identity)
        return self.call(self.asking(said), **call)

    def context(self) -> Context | None:
        """Where the call belongs, None for where it is made."""
        return self.caller.context if self.caller is not None and current_lease() is None else None

    def over(self, inner: Gate) -> Gate:
        found = super().over(inner)
        if found is not inner:
            found.caller = self.caller or inner.caller
        return found

    def naming(self, caller: Caller | None = None, **names: Any) -> Gate:
        """The same for what AutoGen calls so."""
        return Gate(self.rm, self.arguments, self.options, self.named._replace(**names), caller or self.caller)

    def to_config(self) -> dict[str, Any]:
        told = {"arguments": self.arguments, "names": self.named}
        said = {key: {n: v for n, v in who._asdict().items() if v is not None} for key, who in told.items()}
        options = {name: value for name, value in self.options.items() if name != "guards"}  # of one task, no setting
        return {"manager": self.rm.name, "options": options, **said}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Gate:
        """Raises ConfigError outside of `loading` the manager of that name."""
        name, managers = config["manager"], _loading.get()
        if name not in managers:
            allowed = f"{', '.join(map(repr, managers))}; load it in `with agentrm_autogen.loading(rm):`"
            raise ConfigError("manager", name, allowed if managers else allowed[2:])
        who, options = read_options("load_component", {**config["arguments"], **config["options"]})
        return cls(managers[name], who, options, Identity(**config["names"]))


def make_gate(rm: Any, where: str, given: Mapping[str, Any]) -> Gate:
    """From the keyword arguments of `where`: those of an identity, and `pool`, `wait_max`, `idle_s`, `run_s`,
    `guards`."""
    return Gate(rm, *read_options(where, given))


def placed(gate: Gate, make: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """`make()` where the call belongs, to be awaited at once."""
    return make() if gate.caller is None or gate.context() is None else start(gate, make)


def start(gate: Gate, make: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
    """The same as a task."""

    async def run() -> T:
        return await make()

    coroutine: Coroutine[Any, Any, T] = run()
    context = gate.context()
    return asyncio.create_task(coroutine) if context is None else context.run(asyncio.create_task, coroutine)
