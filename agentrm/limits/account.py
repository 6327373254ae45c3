"""One budget at run time: what it allows, what is spent and reserved in the present window, and for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrm.limits.prices import UNKNOWN, Cost, PriceTable, Use, cost

if TYPE_CHECKING:
    from agentrm.config import Budget

__all__ = ["CALLS", "KINDS", "TOKENS", "USD", "WALL", "Account", "Amounts", "BudgetStatistics", "Charge"]

KINDS = ("calls", "tokens", "usd", "wall_s")
CALLS, TOKENS, USD, WALL = range(4)
Amounts = list[float]
"""One number for each of `KINDS`."""

ROUNDING = 1e-9
"""Relative: sums of money are floats."""


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """Of one budget, in its present window. Each mapping is by kind: calls, tokens, usd (US dollars), wall_s
    (seconds).

    `spent` is settled, `reserved` belongs to calls that have not ended; `limits` has the kinds that are limited.
    `spent["usd"]` is `unknown` if a call had no known price. `estimated`: calls whose real use nobody reported.
    `refused` and `delayed_now` count calls turned away since the start, and calls that wait for the pace now. """

    spent: dict[str, Cost]
    reserved: dict[str, float]
    limits: dict[str, float]
    renews_in_s: float | None
    estimated: int
    refused: int
    delayed_now: int


class Charge:
    """What one call has reserved of one account, in which window. `timed`: whether its seconds count there."""

    __slots__ = ("account", "amounts", "paced", "timed", "window")

    def __init__(self, account: Account, amounts: Amounts, timed: bool) -> None:
        self.account, self.amounts, self.timed = account, amounts, timed
        self.window = account.window
        self.paced = 0.0
        """Tokens taken from the pace."""


class Account:
    """See the module. Changed inside the budgets' `Serial` only."""

    __slots__ = (
        "budget", "by_model", "delayed", "estimated", "level", "level_ns", "limits", "name", "per_ns", "refused",
        "reserved", "spent", "start_ns", "unpriced", "window",
    )  # fmt: skip

    def __init__(self, name: str, budget: Budget, start_ns: int) -> None:
        self.name, self.budget = name, budget
        self.limits = (budget.calls, budget.tokens, budget.usd, budget.wall_s)
        self.per_ns = 0 if budget.per is None else max(1, int(budget.per * 1e9))
        self.start_ns, self.window = start_ns, 0
        self.spent: Amounts = [0, 0, 0.0, 0.0]
        self.reserved: Amounts = [0, 0, 0.0, 0.0]
        self.by_model: dict[str | None, Use] = {}
        """What was spent, so that it can be reckoned again when a price turns out wrong."""
        self.unpriced = self.estimated = self.refused = self.delayed = 0
        self.level: float = budget.burst or 0
        """Tokens that the pace lets go now; negative: they went already."""
        self.level_ns = start_ns

    def roll(self, now: int) -> None:
        """Starts the window anew if its time has come. Windows are counted from the start of the manager; a call
        counts to the one in which it was admitted."""
        if self.per_ns and (window := (now - self.start_ns) // self.per_ns) != self.window:
            self.window = window
            self.spent, self.reserved, self.by_model = [0, 0, 0.0, 0.0], [0, 0, 0.0, 0.0], {}
            self.unpriced = self.estimated = 0

    @property
    def is_idle(self) -> bool:
        """No call that has not ended holds or awaits anything of it, and its pace is owed nothing."""
        return not any(self.reserved) and not self.delayed and self.level >= 0

    def renews_in_s(self, now: int) -> float | None:
        """Seconds until the window starts anew, None if it never does."""
        if not self.per_ns:
            return None
        return (self.start_ns + (self.window + 1) * self.per_ns - now) / 1e9

    def left(self, kind: int) -> float:
        """What neither was spent nor is reserved; infinite without a limit."""
        limit = self.limits[kind]
        return float("inf") if limit is None else limit - self.spent[kind] - self.reserved[kind]

    def lacks(self, sure: Amounts, guessed: Amounts) -> int | None:
        """The kind of which too little is left for a call, if any. What is only guessed needs anything at all."""
        for kind, limit in enumerate(self.limits):
            if limit is None or not (sure[kind] or guessed[kind]):
                continue
            left, rounding = self.left(kind), ROUNDING * limit
            if sure[kind] > left + rounding or (not sure[kind] and left <= rounding):
                return kind
        return None

    def reserve(self, sure: Amounts, guessed: Amounts, timed: bool) -> Charge:
        """Takes what is sure, and of what is guessed as much as there is."""
        amounts = [
            s + max(0.0, min(g, self.left(kind) - s)) for kind, (s, g) in enumerate(zip(sure, guessed, strict=True))
        ]
        for kind, amount in enumerate(amounts):
            self.reserved[kind] += amount
        return Charge(self, amounts, timed)

    def give_back(self, charge: Charge) -> None:
        """The reservation ends."""
        if charge.window == self.window:
            for kind, amount in enumerate(charge.amounts):
                self.reserved[kind] -= amount

    def spend(
        self, charge: Charge, spent: Amounts, model: str | None, use: Use | None, *, priced: bool, estimated: bool
    ) -> None:
        """Books what a call really used, in the window in which it was admitted."""
        if charge.window != self.window:
            return
        for kind, amount in enumerate(spent):
            self.spent[kind] += amount
        if use is not None:
            self.by_model[model] = self.by_model.get(model, Use(0, 0)) + use
            self.unpriced += not priced
        self.estimated += estimated

    def reprice(self, prices: PriceTable) -> None:
        """Reckons the money that this window has spent again, at today's prices."""
        total, unpriced = 0.0, 0
        for model, use in self.by_model.items():
            known = prices.of(model)
            if known is None:
                unpriced += 1
            else:
                total += cost(known, use)
        self.spent[USD], self.unpriced = total, unpriced

    # --- pace ---

    def refill(self, now: int) -> None:
        pace = self.budget.pace
        if pace:
            self.level = min(self.budget.burst or 0, self.level + (now - self.level_ns) * pace / 60e9)
            self.level_ns = now

    def ready_ns(self, tokens: float, now: int) -> int:
        """When a call of so many tokens may go. A call larger than the burst goes once nothing is owed, and is paid
        for afterwards, by those behind it."""
        pace = self.budget.pace
        self.refill(now)
        lacking = min(tokens, self.budget.burst or 0) - self.level
        return now if not pace or lacking <= 0 else now + int(lacking * 60e9 / pace) + 1

    def statistics(self, now: int) -> BudgetStatistics:
        """At `now` (nanoseconds), once a window that is over has been renewed."""
        self.roll(now)
        spent: dict[str, Cost] = dict(zip(KINDS, self.spent, strict=True))
        if self.unpriced:
            spent["usd"] = UNKNOWN
        limits = {kind: float(limit) for kind, limit in zip(KINDS, self.limits, strict=True) if limit is not None}
        reserved = dict(zip(KINDS, self.reserved, strict=True))
        return BudgetStatistics(
            spent, reserved, limits, self.renews_in_s(now), self.estimated, self.refused, self.delayed
        )  # fmt: skip
