"""One tool environment, as the program that uses it sees it, and the figures of all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentrm.errors import ConfigError
from agentrm.threads import Signal, Work, borrow, in_time
from agentrm.tools.errors import EnvironmentEnded
from agentrm.tools.place import Completed, Place, Provider, Usage

if TYPE_CHECKING:
    from agentrm.config import Kind
    from agentrm.scheduling.lease import Lease
    from agentrm.tools.journal import Entry

__all__ = ["Environment", "EnvironmentStatistics", "State"]

_log = logging.getLogger("agentrm")

LONGEST_S = 10**9
State = Literal["queued", "preparing", "ready", "failed", "ended"]


class Environment:
    """Made by `Environments`. `state`: queued (its preparation waits for its turn), preparing, ready, failed (`error`
    says why) or ended. `programs`: the ids of those that use it. `prepare_s`: seconds that its preparation took."""

    def __init__(self, place: Place, settings: Kind, provider: Provider, entry: Entry) -> None:
        self.place, self.settings, self.provider, self.entry = place, settings, provider, entry
        self.state: State = "queued"
        self.programs: set[str] = set()
        self.error: BaseException | None = None
        self.prepare_s = 0.0
        self.lease: Lease | None = None
        self.urgent = False
        """Whether somebody waits for it."""
        self.retired = False
        """Whether it takes no further programs."""
        self.gone = threading.Event()
        """Set when nothing of it exists any more, or it was left to the journal."""
        self.left: BaseException | None = None
        """Why it could not be removed."""
        self._settled = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._stops: set[int] = set()  # ends of pipes that tell running commands to stop

    @property
    def id(self) -> str:
        return self.place.id

    @property
    def kind(self) -> str:
        return self.place.kind

    @property
    def files(self) -> Path:
        """The folder in which its commands run."""
        return self.place.files

    @property
    def ports(self) -> tuple[int, ...]:
        return self.place.ports

    def __repr__(self) -> str:
        return f"<Environment {self.id!r}, {self.state}, {len(self.programs)} programs>"

    # --- being ready ---

    def when_settled(self, callback: Callable[[], object]) -> None:
        """Calls back once, when its state is none of queued and preparing any more; at once if it is so already."""
        with self._lock:
            if not self._settled:
                self._callbacks.append(callback)
                return
        callback()

    def settle(self) -> None:
        """Tells those who wait. Again it does nothing."""
        with self._lock:
            self._settled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    # --- using it ---

    def run(self, words: Sequence[str], timeout: float | None = None) -> Completed:
        """Runs a command in it, blocking this thread. `$NAME` in a word stands for one of its variables. After
        `timeout` seconds the command is ended, politely first. When this returns nothing runs any more that the command
        started. Raises EnvironmentEnded if the program has ended, ConfigError for what is no command or no time, and
        whatever starting the command raises."""
        _check(words, timeout)
        return self._run(words, timeout, *self._stoppable())

    async def run_async(self, words: Sequence[str], timeout: float | None = None) -> Completed:
        """`run` without blocking the loop. When it is cancelled, the command is ended before it goes on."""
        _check(words, timeout)
        reading, writing = self._stoppable()
        over, worker = Signal(), borrow()
        work = Work(lambda: self._run(words, timeout, reading, writing), over.set, worker.give_back)
        work.start(worker)
        ended = asyncio.ensure_future(over.wait())
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._stop(writing)
            while not ended.done():  # however often it is cancelled: ending the command takes its grace time at most
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(ended)
            raise
        finally:
            worker.give_back()
        result: Completed = work.result()
        return result

    def stop(self) -> None:
        """Lets the commands that run be ended."""
        with self._lock:
            for writing in self._stops:
                _poke(writing)

    def usage(self) -> Usage:
        """What it uses now: bytes on disk, processes, listening ports."""
        return self.provider.usage(self.place)

    def is_fit(self) -> bool:
        """Whether all of it is there and its health command, if there is one, says so."""
        if not self.provider.is_there(self.place):
            return False
        return not self.settings.health or self._command(self.settings.health, self.settings.setup_s).returncode == 0

    def problem(self) -> str | None:
        """Why it is not fit, None: it is. A check that raises, or takes longer than `setup_s`, is as good as a no."""
        try:
            return None if in_time(self.is_fit, self.settings.setup_s) else "its check says no"
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; the caller is told, and the log
            _log.warning("the check of %r failed", self, exc_info=error)
            return f"its check failed: {type(error).__name__}: {error}"

    def _command(self, words: Sequence[str], timeout: float | None) -> Completed:
        return self.provider.run(self.place, words, timeout, -1)

    def _stoppable(self) -> tuple[int, int]:
        with self._lock:
            if self.state != "ready" and (self.state != "preparing" or self.retired):
                raise EnvironmentEnded(
                    f"environment {self.id!r} of kind {self.kind!r} is {self.state}, or its program ended; ask again",
                    kind=self.kind,
                )
            reading, writing = os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
            self._stops.add(writing)
        return reading, writing

    def _run(self, words: Sequence[str], timeout: float | None, reading: int, writing: int) -> Completed:
        try:
            return self.provider.run(self.place, words, timeout, reading)
        finally:
            with self._lock:
                self._stops.remove(writing)
                os.close(writing)
            os.close(reading)

    def _stop(self, writing: int) -> None:
        with self._lock:
            if writing in self._stops:
                _poke(writing)


def _check(words: Sequence[str], timeout: float | None) -> None:
    if isinstance(words, str) or not words or not all(isinstance(word, str) for word in words):
        raise ConfigError("words", words, 'a list of at least one word, such as ["sh", "-c", "..."]')
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 <= timeout <= LONGEST_S):
        raise ConfigError("timeout", timeout, f"seconds from 0 to {LONGEST_S}, or None: no limit")


def _poke(writing: int) -> None:
    with suppress(OSError):
        os.write(writing, b"x")


@dataclass(frozen=True, slots=True)
class EnvironmentStatistics:
    """Numbers of environments by state, and totals since the manager was made. `prepare_s`: seconds of preparation;
    `awaited_s`: seconds that somebody waited for one, which is what of them was on anybody's way."""

    queued: int
    preparing: int
    ready: int
    made: int
    failed: int
    released: int
    lost: int
    prepare_s: float
    awaited_s: float
