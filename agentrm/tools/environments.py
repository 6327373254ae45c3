"""Tool environments bound to programs: made ahead while a program waits, shared where that is allowed, gone at its end.

A program asks for an environment by its kind. The first to ask has it made: the preparation is a call of kind
`environment` in a pool of its own, so their number at once is bounded and the others queue by the same classes as
everything else. Those that somebody waits for go before those that are made ahead. Before anything is made, the journal
says what it will be and whose; after all of it is gone, the entry goes. What a process left that was killed is found
there by the next one that uses the same home, and by `agentrm doctor`.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrm.errors import ConfigError, ForkedError, ManagerClosed
from agentrm.identity import Priority, current_identity
from agentrm.threads import Signal, in_thread, in_time, on_thread
from agentrm.tools.at_exit import close_at_exit
from agentrm.tools.environment import Environment, EnvironmentStatistics
from agentrm.tools.errors import EnvironmentEnded, EnvironmentLeft, EnvironmentLost
from agentrm.tools.journal import Entry, Journal, default_home
from agentrm.tools.leftovers import clean
from agentrm.tools.making import make, timed_out
from agentrm.tools.owners import this_process
from agentrm.tools.place import Place, Provider
from agentrm.tools.ports import free_ports
from agentrm.tools.program import ProgramEnvironments
from agentrm.tools.providers import load_provider

if TYPE_CHECKING:
    from agentrm.config import Kind
    from agentrm.scheduling.lease import Lease
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Environments"]

Done = Callable[["BaseException | None"], None]
Making = Callable[[Environment, Done], None]


class Environments:
    """See the module. One for each manager: `rm.environments`. Safe from any thread and event loop.

    `providers`: by name, instead of those that are installed. `making(environment, done)` starts what makes one and
    calls `done(error)` when it has ended; for simulations, whose time does not pass in threads. `recover`: remove, in a
    thread of its own, what dead owners left in the same home.
    """

    def __init__(
        self,
        rm: ResourceManager,
        *,
        providers: Mapping[str, Provider] | None = None,
        making: Making | None = None,
        recover: bool = True,
    ) -> None:
        settings = rm.config.environments
        if not settings.kinds:
            allowed = "at least one kind, such as environments={'kinds': {'sandbox': {}}}"
            raise ConfigError("environments.kinds", {}, allowed)
        self._rm, self.settings = rm, settings
        self._providers: dict[str, Provider] = dict(providers or {})
        for kind, one in settings.kinds.items():
            if one.provider not in self._providers:
                self._providers[one.provider] = load_provider(one.provider, key=f"environments.kinds.{kind}.provider")
        self.home = default_home() if settings.home is None else Path(settings.home).expanduser().absolute()
        self._journal = Journal(self.home)
        try:
            self._journal.open()
        except OSError as error:
            raise ConfigError("environments.home", str(self.home), f"a folder that can be used ({error})") from error
        self._owner = this_process()
        self._making = making or self._make_in_thread
        self._lock = threading.RLock()
        self._of: dict[tuple[str, str], Environment] = {}
        self._live: dict[str, Environment] = {}
        self._ports: set[int] = set()
        self._closed = False
        self._made = self._failed = self._released = self._lost = 0
        self._prepare_s = self._awaited_s = 0.0
        self._patience_s: float | None = None
        self._at_exit = atexit.register(partial(close_at_exit, weakref.ref(self), self._owner.pid))
        if recover:
            in_thread(lambda: clean(self.home))

    # --- for programs ---

    def program(self, id: str) -> ProgramEnvironments:
        """The environments of one program as a block, at whose end they are released."""
        return ProgramEnvironments(self, id)

    def prepare(self, program: str, kind: str) -> Environment:
        """Has the environment made ahead, in the background; returns at once. Asked again it changes nothing."""
        return self._ask(program, kind, None)

    def get(self, program: str, kind: str) -> Environment:
        """The program's environment of that kind, ready for use; waits, blocking this thread, until it is made.

        Raises what its making raised (SetupFailed, SetupTimeout, a provider's own error), EnvironmentLost if it was
        ready once and is not fit for use any more, EnvironmentEnded if the program ends meanwhile."""
        while True:
            environment, began = self._ask(program, kind, _priority()), self._rm.clock.now_ns()
            ready = threading.Event()
            environment.when_settled(ready.set)
            ready.wait()
            if self._is_usable(environment, program, began):
                return environment

    async def get_async(self, program: str, kind: str) -> Environment:
        """`get` without blocking the loop."""
        while True:
            environment, began = self._ask(program, kind, _priority()), self._rm.clock.now_ns()
            if environment.state in ("queued", "preparing"):
                ready = Signal()
                environment.when_settled(ready.set)
                await ready.wait()
            if await on_thread(lambda one=environment, at=began: self._is_usable(one, program, at)):  # type: ignore[misc]
                return environment

    def end(self, program: str) -> None:
        """Releases what the program has: commands that run are ended, and environments that no other program shares are
        removed before this returns. Without any it does nothing. Raises EnvironmentLeft if something can't be removed,
        or not within `environments.remove_s` seconds.
        """
        self._refuse_fork()
        with self._lock:
            own = [self._of.pop(key) for key in [key for key in self._of if key[0] == program]]
            for environment in own:
                environment.programs.discard(program)
            over = [one for one in own if not one.programs]
            for environment in over:
                environment.retired = True
        problems: dict[str, BaseException] = {}
        for environment in over:
            error = self._release(environment)
            if error is not None:
                problems[environment.id] = error
        if problems:
            raise EnvironmentLeft(problems)

    def close(self) -> None:
        """Ends all programs; nothing is made any more. Raises EnvironmentLeft if something can't be removed."""
        self._refuse_fork()
        with self._lock:
            self._closed = True
            programs = list(dict.fromkeys(program for program, _ in self._of))
        atexit.unregister(self._at_exit)
        problems: dict[str, BaseException] = {}
        for program in programs:
            try:
                self.end(program)
            except EnvironmentLeft as error:
                problems |= error.problems
        if problems:
            raise EnvironmentLeft(problems)

    async def close_async(self) -> None:
        """`close` without blocking the loop."""
        await on_thread(self.close)

    # --- looking ---

    def of_program(self, program: str) -> dict[str, Environment]:
        """What a program has, by kind."""
        with self._lock:
            return {kind: one for (owner, kind), one in self._of.items() if owner == program}

    def statistics(self) -> EnvironmentStatistics:
        with self._lock:
            states = [one.state for one in self._live.values()]
            return EnvironmentStatistics(
                states.count("queued"), states.count("preparing"), states.count("ready"), self._made, self._failed,
                self._released, self._lost, self._prepare_s, self._awaited_s,
            )  # fmt: skip

    # --- asking ---

    def _ask(self, program: str, kind: str, priority: Priority | None) -> Environment:
        """`priority`: that of somebody who waits; None: nobody does."""
        self._refuse_fork()
        settings = self.settings.kinds.get(kind)
        if settings is None:
            raise ConfigError("kind", kind, "one of environments.kinds: " + ", ".join(self.settings.kinds))
        if not isinstance(program, str) or not program:
            raise ConfigError("program", program, "the id of a program (text)")
        with self._lock:
            if self._closed:
                raise ManagerClosed("the environments are closed; make a new manager")
            environment = self._of.get((program, kind))
            if environment is None:
                environment = self._shared(kind, settings) or self._new(program, kind, settings)
                environment.programs.add(program)
                self._of[program, kind] = environment
        try:
            while not self._queue(environment, program, priority):
                pass
        except BaseException as error:
            self._fail(environment, error)
            raise
        return environment

    def _queue(self, environment: Environment, program: str, priority: Priority | None) -> bool:
        """Lets its making wait for a lane, unless it does so already as it should. False: somebody else was quicker."""
        with self._lock:
            before = environment.lease
            if environment.state != "queued" or (before is not None and (priority is None or environment.urgent)):
                return True
        lease = self._rm.lease(
            kind="environment", agent=current_identity().agent or program, priority=priority or "background",
            tokens=0, run_s=environment.settings.setup_s, parent=None, on_reap=lambda *_: self._overdue(environment),
        )  # fmt: skip
        with self._lock:
            if environment.lease is not before:
                return False
            environment.lease, environment.urgent = lease, priority is not None
        if before is not None:  # made ahead until now: somebody waits for it, so it goes before those
            before.release()
        lease.acquire_then(lambda error: self._granted(environment, lease, error), free=True)
        return True

    def _shared(self, kind: str, settings: Kind) -> Environment | None:
        most = float("inf") if settings.share == "any" else settings.share
        for one in self._live.values():
            if one.kind == kind and not one.retired and one.state != "failed" and len(one.programs) < most:
                return one
        return None

    def _new(self, program: str, kind: str, settings: Kind) -> Environment:
        id = f"{re.sub('[^a-z0-9]+', '-', kind.lower()).strip('-') or 'kind'}-{uuid.uuid4().hex[:12]}"
        ports = free_ports(settings.ports, self._ports)
        self._ports |= set(ports)
        numbered = {"PORT" if i == 0 else f"PORT_{i + 1}": str(port) for i, port in enumerate(ports)}
        place = Place(
            id, kind, settings.provider, self._journal.folder_of(id), ports, {**settings.variables, **numbered},
            dict(settings.options), self.settings.grace_s,
        )  # fmt: skip
        entry = Entry(place, self._owner, program, self._rm.clock.wall())
        environment = Environment(place, settings, self._providers[settings.provider], entry)
        self._live[id] = environment
        return environment

    def _is_usable(self, environment: Environment, program: str, began_ns: int) -> bool:
        """False: ask again. Raises what the caller must know."""
        with self._lock:
            self._awaited_s += (self._rm.clock.now_ns() - began_ns) / 1e9
            mine = program in environment.programs
        if environment.state == "failed" and environment.error is not None:
            raise environment.error
        problem = environment.problem() if environment.state == "ready" and mine else None
        if environment.state != "ready" or not mine:  # it may have ended while it was checked
            text = f"program {program!r} ended while its environment of kind {environment.kind!r} was made"
            raise EnvironmentEnded(text, kind=environment.kind, program=program)
        if problem is None:
            return True
        shared = environment.settings.share != 1
        with self._lock:
            environment.retired = True
            if self._of.get((program, environment.kind)) is environment:
                del self._of[program, environment.kind]
                self._lost += 1
            environment.programs.discard(program)
            last = not environment.programs
        if last:
            self._release(environment)
        if shared:  # it holds nothing that is the program's own
            return False
        raise EnvironmentLost(
            f"the environment of kind {environment.kind!r} of program {program!r} is not fit for use any more "
            f"({problem}) and was removed; ask again for a new one",
            kind=environment.kind, program=program,
        )  # fmt: skip

    # --- making ---

    def _granted(self, environment: Environment, lease: Lease, error: BaseException | None) -> None:
        with self._lock:
            wanted = environment.state == "queued" and environment.lease is lease
            if wanted and error is None:
                environment.state = "preparing"
        if not wanted:
            lease.release()
        elif error is not None:
            self._fail(environment, error)
        else:
            self._making(environment, lambda failure: self._made_it(environment, lease, failure))

    def _make_in_thread(self, environment: Environment, done: Done) -> None:
        in_thread(lambda: done(make(environment, self._journal)))

    def _made_it(self, environment: Environment, lease: Lease, error: BaseException | None) -> None:
        with self._lock:
            took = lease.held_s
            self._prepare_s += took
            environment.prepare_s = took
            ready = error is None and environment.state == "preparing" and not environment.retired
            if ready:
                environment.state = "ready"
                self._made += 1
        if ready:
            lease.release()
            environment.settle()
            return
        failure = self._remove(environment)
        lease.release()
        if environment.retired:  # its program ended meanwhile, or it was overdue
            environment.state = "ended" if environment.state == "preparing" else environment.state
        else:
            self._fail(environment, error)
        self._forget(environment, failure)

    def _overdue(self, environment: Environment) -> None:
        """Its making takes too long and can't be interrupted: the lane is free, those who wait are told, and what is
        made is removed when the thread comes back."""
        environment.stop()
        self._fail(environment, timed_out(environment))
        environment.gone.set()

    def _fail(self, environment: Environment, error: BaseException | None) -> None:
        with self._lock:
            if environment.state not in ("queued", "preparing"):
                return
            unmade = environment.state == "queued"
            environment.state, environment.error, environment.retired = "failed", error, True
            self._failed += 1
            for program in environment.programs:
                self._of.pop((program, environment.kind), None)
            environment.programs.clear()
        environment.settle()
        if unmade:
            self._forget(environment, None)

    # --- releasing ---

    def _release(self, environment: Environment) -> BaseException | None:
        """Removes it, once, and waits until it is gone. Returns what went wrong."""
        with self._lock:
            state = environment.state
            if state in ("queued", "ready"):
                environment.state = "ended"
        environment.settle()
        environment.stop()
        error: BaseException | None = None
        if state == "queued":
            if environment.lease is not None:
                environment.lease.release()
            self._forget(environment, None)
        elif state == "ready":
            try:
                in_time(lambda: self._forget(environment, self._remove(environment)), self.settings.remove_s)
                error = environment.left
            except TimeoutError as late:  # it goes on; the journal has it until it is over, or the next owner finds it
                error = TimeoutError(f"its removal is {late} (environments.remove_s)")
        else:  # whoever makes it removes it
            environment.gone.wait(self._patience_s)
            error = environment.left
        return error

    def _remove(self, environment: Environment) -> BaseException | None:
        try:
            environment.provider.remove(environment.place)
            self._journal.remove(environment.entry)
        except BaseException as error:  # noqa: BLE001 - returned, and the journal keeps what is left
            with suppress(OSError):  # a full disk: the entry stands as it is until the owner has ended
                self._journal.abandon(environment.entry)
            return error
        return None

    def _forget(self, environment: Environment, error: BaseException | None) -> None:
        with self._lock:
            if self._live.pop(environment.id, None) is not None:
                self._released += 1
                self._ports -= set(environment.ports)
        environment.left = error
        environment.gone.set()

    def _refuse_fork(self) -> None:
        if os.getpid() != self._owner.pid:
            text = "the environments belong to the process that this one was forked from; make a new manager"
            raise ForkedError(text)


def _priority() -> Priority:
    return current_identity().priority or "interactive"
