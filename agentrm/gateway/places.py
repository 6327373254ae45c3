"""The engines behind the gateway: how each is, as far as was seen, and which of them serves a model."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import aiohttp

from agentrm.config import Gateway as GatewayConfig
from agentrm.config import GatewayBackend
from agentrm.errors import ConfigError
from agentrm.gateway.keys import secret
from agentrm.gateway.upstream import Engine
from agentrm.programs.backends import UNKNOWN, Backend, Settings, Signals, load, poll

__all__ = ["Place", "Places"]

_log = logging.getLogger("agentrm.gateway")

FIRST_PREFILL = 8000.0
"""Prompt tokens that an engine computes in a second, as long as nothing was seen of it."""
SMALLEST_PREFILL = 128
"""Fewer tokens say more about the way there than about the engine."""
LOOKS_PER_CLEANING = 300
DOWN_AFTER = 2
"""Looks in a row that an engine may leave unanswered before it is taken to be down: busy is not dead."""


class Place:
    """One engine, its backend and what is known of it."""

    def __init__(self, name: str, config: GatewayBackend, engine: Engine) -> None:
        self.name, self.config, self.engine = name, config, engine
        try:
            self.backend: Backend = load(config.kind)(
                name, engine, Settings(config.priority, config.admin, config.swap_dir)
            )
        except ConfigError as error:
            raise ConfigError(f"gateway.backends.{name}.kind", config.kind, error.allowed) from None
        self.up = False
        self.signals: Signals = UNKNOWN
        self.missed = 0
        self.prefill_rate = FIRST_PREFILL
        """Prompt tokens a second from request to first event, waiting inside the engine included: what computing again
        really costs."""

    def learn_prefill(self, tokens: int, seconds: float) -> bool:
        """An answer began `seconds` after its call was sent, for which `tokens` of the prompt were computed. Whether
        that changed the rate much."""
        if tokens < SMALLEST_PREFILL or seconds <= 0:
            return False
        seen, before = tokens / seconds, self.prefill_rate
        self.prefill_rate = seen if before == FIRST_PREFILL else before + (seen - before) / 4
        return abs(self.prefill_rate - before) > before / 10

    @property
    def capacity(self) -> int | None:
        """Tokens of its KV memory, as configured or as it says; None: unknown."""
        return self.config.kv_tokens or self.signals.capacity

    @property
    def block(self) -> int:
        """Tokens of one block of that memory; 1 where it says nothing that fits."""
        said = self.signals.block
        return said if said is not None and said <= (self.capacity or 0) else 1


class Places:
    """All engines. `changed(place)` is called whenever one comes up, goes down or says another capacity."""

    def __init__(
        self, config: GatewayConfig, session: aiohttp.ClientSession, changed: Callable[[Place], object]
    ) -> None:
        self._limit_s, self._changed = config.poll_limit_s, changed
        self._every_s, self._idle_s = config.poll_s, config.idle_s
        self.all: dict[str, Place] = {}
        for name, one in config.backends.items():
            key = one.api_key_env and secret(one.api_key_env, f"gateway.backends.{name}.api_key_env")
            self.all[name] = Place(name, one, Engine(session, one.url, key or None, config.connect_s))

    def groups(self) -> Mapping[tuple[str, ...], list[Place]]:
        """The engines that are interchangeable, by the patterns of the models that they serve."""
        found: dict[tuple[str, ...], list[Place]] = {}
        for place in self.all.values():
            found.setdefault(place.config.models, []).append(place)
        return found

    async def look(self) -> None:
        """Asks all engines once how they are."""
        before = {name: (place.capacity, place.block) for name, place in self.all.items()}
        for name, signals in (await poll([p.backend for p in self.all.values()], self._limit_s)).items():
            place = self.all[name]
            if signals.healthy:
                place.signals, place.missed = signals, 0
                if not place.up:
                    place.up = True
                    _log.info("engine %r at %s answers", place.name, place.config.url)
                    place.backend.reset()
                    self._changed(place)
                elif (place.capacity, place.block) != before[name]:
                    self._changed(place)
            else:
                place.missed += 1
                if place.missed == DOWN_AFTER and not place.up:
                    self._warn(place, "has not answered yet")
                if place.missed >= DOWN_AFTER:
                    self.down(place)

    def down(self, place: Place) -> None:
        """The engine does not answer."""
        if place.up:
            self._warn(place, "does not answer any more")
            place.up, place.signals = False, UNKNOWN
            self._changed(place)

    def _warn(self, place: Place, what: str) -> None:
        _log.warning("engine %r at %s %s; it is asked every %g s", place.name, place.config.url, what, self._every_s)

    def close(self) -> None:
        """Closes the connections that carry no call."""
        for place in self.all.values():
            place.engine.close()

    async def watch(self) -> None:
        """Looks again and again, until cancelled, and clears away now and then."""
        for looks in itertools.count():
            try:
                if looks % LOOKS_PER_CLEANING == 0:
                    for place in self.all.values():
                        place.backend.clean(self._idle_s)
                await asyncio.sleep(self._every_s)
                await self.look()
            except Exception:  # noqa: BLE001 - whatever it was: an engine that comes back has to be noticed
                _log.exception("looking at the engines failed; the next look comes in %g s", self._every_s)


def serves(patterns: tuple[str, ...], model: str | None) -> bool:
    """Whether engines with these patterns serve the model; a request without one goes to whoever comes first."""
    return model is None or any(fnmatchcase(model, pattern) for pattern in patterns)
