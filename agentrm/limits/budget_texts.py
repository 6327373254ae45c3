"""What a caller is told when a budget stops its call: which one, how far it is spent, when it renews, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrm.limits.account import KINDS, USD, WALL, Account
from agentrm.limits.errors import BudgetExceeded, OutputLimit, PriceUnknown

if TYPE_CHECKING:
    from agentrm.scheduling.lease import Lease

__all__ = ["exceeded", "no_price", "reply_stopped"]


def exceeded(lease: Lease, account: Account, kind: int, asked: float, now: int) -> BudgetExceeded:
    """`asked`: of the kind at index `kind` of `KINDS`, in its unit; 0: more than is left. `now`: nanoseconds."""
    limit = account.limits[kind] or 0
    spent, reserved, name = account.spent[kind], account.reserved[kind], KINDS[kind]
    renews = account.renews_in_s(now)
    per = "" if account.budget.per is None else f" in {account.budget.per:g} s"
    held = f", {_amount(kind, reserved)} are reserved by calls that have not ended" if reserved > 0 else ""
    wants = f"asks for {_amount(kind, asked)}" if asked else "asks for more"
    advice = f"It does not renew: raise budgets.{account.name}.{name}"
    if renews is not None:
        advice = f"It renews in {renews:.3g} s: wait, or raise budgets.{account.name}.{name}"
    return BudgetExceeded(
        f"budget {account.name!r} allows {_amount(kind, limit)}{per}; {_amount(kind, spent)} are spent{held}, and the "
        f"call of agent {lease.agent!r} {wants}. It was not sent. {advice}",
        budget=account.name, kind=name, spent=spent, reserved=reserved, asked=asked, limit=limit, renews_in_s=renews,
        pool=lease.pool, agent=lease.agent, is_retryable=asked <= limit and (renews is not None or reserved > 0),
    )  # fmt: skip


def no_price(lease: Lease, account: Account) -> PriceUnknown:
    """The budget limits money, and what the call costs can't be told."""
    model = lease.route.model
    what = f"of the model {model!r}" if model else "of a call that names no model"
    return PriceUnknown(
        f"budget {account.name!r} limits money and the price {what} is not known; the call of agent {lease.agent!r} "
        f"was not sent. Check the name, or state its price, prices: {{{model or '*'!r}: {{input: ..., output: ...}}}} "
        "(US dollars per million tokens; '*' is every model that is not listed)",
        model=model, budget=account.name, pool=lease.pool, agent=lease.agent,
    )  # fmt: skip


def reply_stopped(lease: Lease, account: Account, limit: int, produced: int) -> OutputLimit:
    """`limit`, `produced`: output tokens."""
    return OutputLimit(
        f"the reply to agent {lease.agent!r} was stopped after {produced} output tokens: budgets.{account.name} had "
        f"{limit} left for it. What had come is in `partial`; raise the budget or ask for shorter replies",
        limit=limit, produced=produced, budget=account.name, pool=lease.pool, agent=lease.agent,
    )  # fmt: skip


def _amount(kind: int, amount: float) -> str:
    if kind == USD:
        return f"{amount:.4g} US dollars"
    return f"{amount:.3f} s of running calls" if kind == WALL else f"{amount:.0f} {KINDS[kind]}"
