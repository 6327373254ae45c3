"""The sections of the configuration, key by key: meaning, unit, range and default of each."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from agentrm.config.readers import Reader, choice, did_you_mean, either, listed, number, seconds, text, whole
from agentrm.config.schema import Section, key, section
from agentrm.errors import ConfigError

LEVELS = 3
"""Levels of the multi-level feedback queue; the quanta are listed one per level."""

MOST_LANES = 1_000_000
BUILT_IN_POLICIES = ("mlfq", "fifo", "rr", "priority", "drf", "auto")
POLICY_GROUP = "agentrm.policies"

Resource = Literal["requests", "tokens", "memory"]
Shape = Literal["rolling", "bucket", "gauge"]


@dataclass(frozen=True, slots=True)
class Limit(Section):
    """What a pool or an account may use of one resource: exactly one of `requests`, `tokens` and `memory` is
    set.

    Requests and tokens are limited per window of `per` seconds, memory is limited at any one time.

    A *rolling* limit is exact: in no window of `per` seconds, wherever it starts, is more than the amount
    admitted. A *bucket* refills continuously at amount / `per` and holds up to `burst`, so a window that
    starts with a full bucket can see amount + `burst`. That is how providers count tokens; where "never more
    than N in any window" must hold for tokens too, choose `shape: rolling`, or a smaller `burst`.
    """

    requests: int | None = key(whole(), None, "Requests per window.")
    tokens: int | None = key(whole(), None, "Tokens per window, input and output together.")
    memory: int | None = key(whole(), None, "Bytes in use at any one time, by all running calls together.")
    per: float | None = key(
        seconds(),
        None,
        "The window in seconds. Needed with `requests` and `tokens`, not allowed with `memory`.",
    )
    burst: int | None = key(
        whole(),
        None,
        "How much a bucket holds, in the unit of the limit; null: as much as the limit's amount.",
    )
    shape: Shape | None = key(
        choice("rolling", "bucket"), None, "How it counts; null: `rolling` for requests, `bucket` for tokens."
    )

    @property
    def resource(self) -> Resource:
        """Which resource is limited."""
        return "requests" if self.requests else "tokens" if self.tokens else "memory"

    @property
    def amount(self) -> int:
        """How much of it, in requests, tokens or bytes."""
        return self.requests or self.tokens or self.memory or 0

    @property
    def counting(self) -> Shape:
        """How it counts, the default filled in; `gauge` for memory."""
        if self.memory:
            return "gauge"
        return self.shape or ("rolling" if self.requests else "bucket")

    @property
    def capacity(self) -> int:
        """The most that can be taken at once: the burst of a bucket, else the amount."""
        return self.burst or self.amount

    def check(self, key: str) -> None:
        resources = ("requests", "tokens", "memory")
        chosen = [name for name in resources if getattr(self, name) is not None]
        if len(chosen) != 1:
            given = {name: getattr(self, name) for name in chosen}
            raise ConfigError(key, given, "exactly one of requests, tokens and memory in each limit")
        if self.memory:
            for name in ("per", "burst", "shape"):
                if (value := getattr(self, name)) is not None:
                    raise ConfigError(f"{key}.{name}", value, "nothing beside memory, which has no window")
        elif self.per is None:
            raise ConfigError.missing(f"{key}.per", "the window in seconds, a number above 0")
        elif self.burst is not None and self.counting == "rolling":
            raise ConfigError(
                f"{key}.burst",
                self.burst,
                "no burst with shape rolling, which is exact (shape: bucket has one)",
            )


@dataclass(frozen=True, slots=True)
class Account(Section):
    """Limits that several pools share, as an account at a provider has them."""

    limits: tuple[Limit, ...] = key(
        listed(section(Limit)), (), "What all pools of the account may use together; all must have room."
    )


@dataclass(frozen=True, slots=True)
class Retry(Section):
    """When a call that failed is tried again. Only failures that can pass are, and nothing is held
    meanwhile."""

    attempts: int = key(
        whole(1, 100),
        6,
        "Attempts of one call in all, the first included; 1: the first failure goes to the caller.",
    )


def _is_pattern(given: str) -> bool:
    """A shell pattern whose brackets close: fnmatch would take a lone bracket as a letter, which nobody
    means."""
    at = given.find("[")
    while at >= 0:
        first = at + 2 if given[at + 1 : at + 2] == "!" else at + 1
        at = given.find("]", first + 1)  # a bracket that comes first stands for itself
        if at < 0:
            return False
        at = given.find("[", at)
    return True


PATTERN = text('a shell pattern such as "gpt-*" or "claude-[34]*", with its brackets closed', _is_pattern)


@dataclass(frozen=True, slots=True)
class Pool(Section):
    """Lanes, limits and one queue in front of one endpoint or several that are interchangeable."""

    account: str | None = key(
        text("the name of one of the accounts"), None, "The account whose limits apply too."
    )
    lanes: int = key(
        whole(1, MOST_LANES),
        4,
        "Concurrent calls. The pool `tools`, where tool calls run by default, has 16.",
    )
    models: tuple[str, ...] = key(
        listed(PATTERN),
        (),
        "Patterns of model names that belong here (case counts). The first pool that matches serves the "
        "call.",
    )
    endpoints: tuple[str, ...] = key(
        listed(text('a URL or the name of an engine, such as "http://127.0.0.1:8000/v1"')),
        (),
        "The interchangeable places that execute calls.",
    )
    limits: tuple[Limit, ...] = key(listed(section(Limit)), (), "What the pool may use; all must have room.")
    zombies: int | Literal["lanes"] | None = key(
        either("lanes", whole(0, MOST_LANES)),
        None,
        "As `reaper.zombies`, for this pool; null: what is said there.",
    )
    oversize: Literal["refuse", "debt"] = key(
        choice("refuse", "debt"),
        "refuse",
        "What becomes of a call that is larger than a limit can ever hold: refused at once, or let in "
        "alone, its debt worked off before the next.",
    )
    retry: Retry = key(section(Retry), Retry, "When a failed call is tried again.")


@dataclass(frozen=True, slots=True)
class Tenant(Section):
    """A tenant's share. Tenants that wait for the same pool get it in the ratio of their weights."""

    weight: float = key(
        number(1_000_000, least=0.01),
        1.0,
        "The share relative to other tenants. Tenants that are not listed have the weight of the one named "
        "`default`, else 1 or the lowest weight listed, whichever is less.",
    )


def _policy() -> Reader[str]:
    allowed = f"{', '.join(BUILT_IN_POLICIES)}, or the name of a policy that is installed"

    def read(value: object, key: str) -> str:
        if isinstance(value, str) and value in BUILT_IN_POLICIES:
            return value
        from importlib.metadata import entry_points  # reads the installed packages, so only when it is needed

        names = (*BUILT_IN_POLICIES, *sorted(entry_points(group=POLICY_GROUP).names - set(BUILT_IN_POLICIES)))
        if not isinstance(value, str) or value not in names:
            raise ConfigError(key, value, ", ".join(names) + did_you_mean(value, names))
        return value

    return Reader(allowed, read)


@dataclass(frozen=True, slots=True)
class Scheduling(Section):
    """The order in which waiting calls run."""

    policy: str = key(
        _policy(),
        "mlfq",
        "`mlfq`: three levels with feedback and fair order inside each; `fifo`: by arrival; `rr`: round robin over "
        "agents; `priority`: by class, then arrival; `drf`: by dominant share alone; `auto`: whichever of these fits "
        "what is waiting.",
    )
    quanta_s: tuple[float, ...] = key(
        listed(seconds(infinite=True), LEVELS),
        (10.0, 30.0, math.inf),
        "Lane time in seconds that an agent may use at each level before it moves down one.",
    )
    quanta_tokens: tuple[float, ...] = key(
        listed(number(10**15, least=1, infinite=True), LEVELS),
        (8_000.0, 32_000.0, math.inf),
        "Tokens that an agent may use at each level before it moves down one.",
    )
    boost_s: float = key(
        seconds(), 60.0, "Seconds after which all agents are back at the level where they enter."
    )


@dataclass(frozen=True, slots=True)
class Backfill(Section):
    """How far smaller calls may pass one that waits for room in a limit, until the room is saved up for
    it."""

    passes: int = key(whole(0, 1_000_000), 16, "How many calls may pass it; 0: none, the order is strict.")
    max_s: float = key(seconds(), 2.0, "For how many seconds it may be passed.")


@dataclass(frozen=True, slots=True)
class Waiting(Section):
    """Bounds of the queue. They are apart from the limits of running calls, and have errors of their own."""

    max_s: float | None = key(
        seconds(), None, "Seconds that a call may wait before `QueueTimeout`; null: as long as it takes."
    )
    max_queued: int = key(
        whole(1, 10_000_000), 10_000, "Calls that may wait in one pool; one more is refused with `QueueFull`."
    )
    backfill: Backfill = key(section(Backfill), Backfill, "How far a call that needs much may be passed.")


@dataclass(frozen=True, slots=True)
class Reaper(Section):
    """When a running call is taken to hang, and what happens then."""

    idle_s: float | Literal["auto"] = key(
        either("auto", seconds()),
        "auto",
        "Seconds without a chunk or heartbeat before `IdleTimeout`; `auto`: from what is usual for the "
        "model and size.",
    )
    run_s: float = key(seconds(), 600.0, "Seconds that a call may run before `RunTimeout`.")
    sweep_s: float = key(seconds(), 1.0, "Seconds between two looks at what is overdue.")
    recover: int = key(
        whole(0, 100),
        1,
        "Times that a call found hanging is tried again on a fresh connection before the error.",
    )
    zombies: int | Literal["lanes"] = key(
        either("lanes", whole(0, MOST_LANES)),
        "lanes",
        "Reaped calls per pool that may still be at work because they could not be stopped, their lane "
        "given on. At this number lanes stay taken until the work ends; `lanes`: as many as the pool has; 0: always.",
    )


@dataclass(frozen=True, slots=True)
class Budget(Section):
    """What an agent, session or tenant may spend, with everything that it calls. At least one amount is
    set.

    A name may be a pattern: `session.*` gives every session a budget of its own. An exact name goes before
    patterns, the first pattern that matches counts.
    """

    tokens: int | None = key(whole(), None, "Tokens, input and output together.")
    usd: float | None = key(number(10**12), None, "Money in US dollars, by `prices`.")
    calls: int | None = key(whole(), None, "Calls of every kind.")
    wall_s: float | None = key(
        seconds(), None, "Seconds that calls ran, all together; a call within another one counts once."
    )
    per: float | None = key(seconds(), None, "Seconds after which it starts anew; null: never.")
    pace: int | None = key(
        whole(), None, "Tokens per minute. Calls beyond it are delayed in the order of arrival, not refused."
    )
    burst: int | None = key(
        whole(), None, "Tokens that may go at once after a quiet spell; null: one call, whatever its size."
    )

    def check(self, key: str) -> None:
        if all(value is None for value in (self.tokens, self.usd, self.calls, self.wall_s, self.pace)):
            raise ConfigError(key, {"per": self.per}, "at least one of tokens, usd, calls, wall_s and pace")
        if self.burst is not None and self.pace is None:
            raise ConfigError(f"{key}.burst", self.burst, "a burst only beside pace")


@dataclass(frozen=True, slots=True)
class Context(Section):
    """When the context of a session is compacted, and where what left it is kept."""

    high: float = key(number(1), 0.8, "Part of the model's window at which compaction starts.")
    low: float = key(number(1), 0.5, "Part of the window that is left after it.")
    store: str | None = key(
        text(
            'a URL such as "sqlite:///sessions.db"',
            lambda url: re.match(r"[a-z][a-z0-9+.-]*://.", url) is not None,
        ),
        None,
        "Where summaries and histories are kept; null: in memory, gone with the process.",
    )

    def check(self, key: str) -> None:
        if self.low >= self.high:
            raise ConfigError(
                f"{key}.low", self.low, f"a number above 0 and below {key}.high, which is {self.high:g}"
            )


BUDGETED = text(
    "tenant.NAME, session.NAME or agent.NAME",
    lambda scope: re.match(r"(tenant|session|agent)\.\S", scope) is not None,
)
"""The names of budgets."""
