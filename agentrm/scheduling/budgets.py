"""May this call be made, by what the agents, sessions and tenants that it counts to have left to spend?

What a call will use is reserved when it is admitted and corrected when it ends, so callers side by side never spend
more together than was reserved. A call counts to its own agent, session and tenant and to those of everyone above
it: of the leases that it is nested in, and of the agents that started its agent (`Guards.child`). What a caller
says of a call's size (`tokens`, `input_tokens`, `max_output_tokens`, `run_s`) is reserved in full; what it does not
say is guessed from earlier calls and reserved as far as there is any left. """

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from agentrm.core.codes import FAILED, REFUND
from agentrm.errors import ManagerClosed
from agentrm.limits.account import TOKENS, USD, WALL, Account, Amounts, BudgetStatistics, Charge
from agentrm.limits.budget_texts import exceeded, no_price, reply_stopped
from agentrm.limits.errors import BudgetExceeded, PriceUnknown
from agentrm.limits.lineage import current_kin
from agentrm.limits.prices import Use, cost, dearest, most
from agentrm.limits.serial import Serial
from agentrm.scheduling import refusals
from agentrm.scheduling.lease import Lease
from agentrm.scheduling.pace import Pace, timeout
from agentrm.scheduling.pool import FIRST_TOKENS, LONGEST_S
from agentrm.scheduling.states import ENDED, NEW
from agentrm.scheduling.waiters import CallbackWaiter, LoopWaiter, ThreadWaiter, Waiter

if TYPE_CHECKING:
    from agentrm.limits.cost import Prices
    from agentrm.scheduling.manager import ResourceManager

__all__ = ["Budgets"]

FIRST_S = 1.0
"""Lane time reserved for a call of unknown duration before any was seen."""

MOST_BY_PATTERN = 65_536
"""Accounts made by patterns (`session.*`) that are kept; beyond, those that renew and spent nothing in their window go
first, then those that were not used for longest. What waits or runs keeps its account."""


W = TypeVar("W", bound=Waiter)


class _Paced(Exception):
    """The pace does not let the call go now."""


class Budgets:
    """All budgets of one manager. Safe from any thread and from finalisers."""

    def __init__(self, rm: ResourceManager) -> None:
        self._rm = rm
        self._serial = Serial()
        self._pace = Pace(rm, self._serial)
        self._start_ns = rm.clock.now_ns()
        exact = {name: budget for name, budget in rm.config.budgets.items() if not _is_pattern(name)}
        self._patterns = [(name, budget) for name, budget in rm.config.budgets.items() if _is_pattern(name)]
        self._accounts = {name: Account(name, budget, self._start_ns) for name, budget in exact.items()}
        self._by_pattern: OrderedDict[str, None] = OrderedDict()
        """Names of the accounts that patterns made, the longest unused first."""
        self._usual: dict[str, tuple[float, float]] = {}
        """Mean input and output tokens of a pool's calls."""
        rm.prices.rewrite = self._reprice

    # --- the way in ---

    def enter(self, lease: Lease) -> bool:
        """Reserves what the call may use, waits, blocking this thread, until its pace lets it go, and submits it:
        as `Gate.submit`.

        Raises BudgetExceeded or PriceUnknown, and QueueTimeout if the pace takes longer than its `wait_max`.
        """
        waiter = self._admit(lease, ThreadWaiter)
        if waiter is not None:
            try:
                waiter.wait()
            except BaseException:
                self.leave(lease)
                raise
            self._waited(lease)
        return self._submit(lease, False)

    async def enter_async(self, lease: Lease) -> bool:
        """`enter` without blocking the loop."""
        waiter = self._admit(lease, lambda: LoopWaiter(asyncio.get_running_loop(), lambda: self.leave(lease)))
        if waiter is not None:
            try:
                if lease.on_wait is not None:
                    lease.on_wait(waiter.future)
                await waiter.future
                if waiter.error is not None:
                    raise waiter.error
            except BaseException:
                self.leave(lease)
                raise
            self._waited(lease)
        return self._submit(lease, False)

    def enter_then(self, lease: Lease, then: Callable[[BaseException | None], object]) -> bool:
        """`enter` for a caller that does not sleep: as `Gate.submit_then`."""

        def go_on(error: BaseException | None) -> None:
            if error is None and lease.state != ENDED:
                try:
                    self._waited(lease)
                    if not self._rm.gate.submit_then(lease, then):
                        return
                except BaseException as refused:  # noqa: BLE001 - whoever waits hears of it, not the timer
                    error = refused
            if error is not None or lease.state == ENDED:
                self.leave(lease)
            if lease.state != ENDED or error is not None:
                then(error)

        if self._admit(lease, lambda: CallbackWaiter(lambda: None, go_on)) is not None:
            return False
        try:
            return self._rm.gate.submit_then(lease, then)
        except BaseException:
            self.leave(lease)
            raise

    def submit(self, lease: Lease, only_try: bool) -> bool:
        """`enter` for a caller that does not wait for the pace: then it is False."""
        try:
            self._admit(lease, None)
        except _Paced:
            return False
        return self._submit(lease, only_try)

    def _submit(self, lease: Lease, only_try: bool) -> bool:
        """What is reserved goes back unless the lease is granted or queued."""
        try:
            granted = self._rm.gate.submit(lease, only_try=only_try)
        except BaseException:
            self.leave(lease)
            raise
        if only_try and not granted:
            self.leave(lease)
        return granted

    def _admit(self, lease: Lease, make_waiter: Callable[[], W] | None) -> W | None:
        """None: the call may be submitted. Else it waits for its pace, asleep on what is returned; where there is
        nothing to sleep on, _Paced is raised and nothing is reserved."""
        if lease.state != NEW:
            return None  # the gate says what is wrong
        self._refuse_if_closing(lease)
        with self._serial:
            charges = tuple(self._reserve(lease))
            paced = [charge for charge in charges if charge.account.budget.pace]
            if not paced or self._pace.passes(paced):
                lease._charges = charges
                return None
            for_s = self._patience_s(lease)
            if make_waiter is None or for_s == 0:
                for charge in charges:
                    charge.account.give_back(charge)
                raise _Paced if make_waiter is None else timeout(lease, 0, paced)
            waiter = make_waiter()
            lease._charges = charges
            lease.submitted_ns = self._rm.clock.now_ns()
            self._pace.park(lease, paced, waiter, for_s)
        try:
            self._refuse_if_closing(lease)  # closed in between
        except ManagerClosed:
            self.leave(lease)
            raise
        return waiter

    def _refuse_if_closing(self, lease: Lease) -> None:
        if self._rm.gate.closing:
            raise refusals.closing(self._rm.name, lease)

    def _patience_s(self, lease: Lease) -> float | None:
        """How long the call may wait."""
        for_s = self._rm.config.waiting.max_s if lease._wait_max is None else lease._wait_max
        return None if for_s is None or for_s > LONGEST_S else for_s

    def _waited(self, lease: Lease) -> None:
        """The time spent here is part of what the call may wait."""
        for_s = self._patience_s(lease)
        if for_s is not None:
            lease._wait_max = max(0.0, for_s - (self._rm.clock.now_ns() - lease.submitted_ns) / 1e9)

    def affords(self, lease: Lease) -> bool:
        """Whether the call would be admitted now; nothing is reserved."""
        with self._serial:
            try:
                for charge in self._reserve(lease, count=False):
                    charge.account.give_back(charge)
            except (BudgetExceeded, PriceUnknown):
                return False
            return True

    def _reserve(self, lease: Lease, *, count: bool = True) -> list[Charge]:
        now = self._rm.clock.now_ns()
        accounts = self._accounts_of(lease)
        if not accounts:
            return []
        above = () if lease._parent is None else lease._parent._charges or ()
        timed_above = {charge.account for charge in above}
        prices = self._rm.prices.of(lease.route.model) if lease.route.kind == "model" else None
        wanted: list[tuple[Account, Amounts, Amounts, bool]] = []
        for account in accounts:
            account.roll(now)
            timed = account not in timed_above
            sure, guessed = self._sizes(lease, prices, timed and account.limits[WALL] is not None)
            error: BudgetExceeded | PriceUnknown | None = None
            if account.limits[USD] is not None and lease.route.kind == "model" and prices is None:
                error = no_price(lease, account)
            elif (kind := account.lacks(sure, guessed)) is not None:
                error = exceeded(lease, account, kind, sure[kind], now)
            if error is not None:
                account.refused += count
                raise error
            wanted.append((account, sure, guessed, timed))
        self._bound_run(lease, wanted)
        return [account.reserve(sure, guessed, timed) for account, sure, guessed, timed in wanted]

    def _accounts_of(self, lease: Lease) -> list[Account]:
        names = [f"tenant.{lease.tenant}", f"agent.{lease.agent}"]
        if lease.session is not None:
            names.append(f"session.{lease.session}")
        kin = current_kin()
        if kin is not None:
            names += [f"agent.{one.agent}" for one in kin.line()]
        found = {account: None for name in names if (account := self._account(name)) is not None}
        for charge in (lease._parent is not None and lease._parent._charges) or ():
            found[charge.account] = None
        return list(found)

    def _account(self, name: str) -> Account | None:
        account = self._accounts.get(name)
        if account is not None:
            if name in self._by_pattern:
                self._by_pattern.move_to_end(name)
            return account
        budget = next((budget for pattern, budget in self._patterns if fnmatchcase(name, pattern)), None)
        if budget is None:
            return None
        if len(self._by_pattern) >= MOST_BY_PATTERN:
            self._forget()
        self._by_pattern[name] = None
        account = self._accounts[name] = Account(name, budget, self._start_ns)
        return account

    def _forget(self) -> None:
        """Makes room for an eighth more accounts."""
        now, room = self._rm.clock.now_ns(), max(1, MOST_BY_PATTERN // 8)
        idle = [name for name in self._by_pattern if self._accounts[name].is_idle]
        for name in idle:
            self._accounts[name].roll(now)
        fresh = [name for name in idle if not any(self._accounts[name].spent)]
        for name in list(dict.fromkeys([*fresh, *idle]))[:room]:
            del self._accounts[name], self._by_pattern[name]

    # --- sizes ---

    def _sizes(self, lease: Lease, prices: Prices | None, timed: bool) -> tuple[Amounts, Amounts]:
        """What the call is sure to reserve, and what is guessed, by kind."""
        total, inputs, outputs = lease._stated[0], lease._stated[1], lease._max_output
        usual_in, usual_out = self._usual.get(lease.pool, (FIRST_TOKENS / 2, FIRST_TOKENS / 2))
        sure: Amounts = [1, 0, 0.0, 0.0]
        guessed: Amounts = [0, 0, 0.0, 0.0]
        if total is not None:
            sure[TOKENS] = total
            if prices is not None:
                sure[USD] = total * dearest(prices) / 1e6
        elif lease.route.kind == "model":
            more_in, more_out = (usual_in if inputs is None else 0), (usual_out if outputs is None else 0)
            sure[TOKENS], guessed[TOKENS] = (inputs or 0) + (outputs or 0), int(more_in + more_out)
            if prices is not None:
                sure[USD], guessed[USD] = (
                    most(prices, inputs or 0, outputs or 0),
                    most(prices, int(more_in), int(more_out)),
                )
        if timed:
            sure[WALL] = lease._run_s or 0.0
            if not sure[WALL]:
                guessed[WALL] = self._rm.kernel.pool_info(lease.route.pool.index).ewma_us / 1e6 or FIRST_S
        return sure, guessed

    def _bound_run(self, lease: Lease, wanted: list[tuple[Account, Amounts, Amounts, bool]]) -> None:
        """A call may not run for longer than its budgets have left."""
        left = min((a.left(WALL) for a, _, _, timed in wanted if timed and a.limits[WALL] is not None), default=None)
        if left is not None and lease._run_s is None:
            lease._run_s = min(left, self._rm.config.reaper.run_s)

    # --- while it runs ---

    def progress(self, lease: Lease, output_tokens: int) -> None:
        """Raises OutputLimit if the reply has grown past what a budget has to give."""
        prices = self._rm.prices.of(lease.route.model) if lease.route.kind == "model" else None
        inputs = _input_of(lease, output_tokens)
        for charge in lease._charges or ():
            account = charge.account
            if charge.window != account.window:
                continue
            spare = account.left(TOKENS) + charge.amounts[TOKENS] - inputs
            if prices is not None and account.limits[USD] is not None and prices.output:
                money = account.left(USD) + charge.amounts[USD] - most(prices, inputs, 0)
                spare = min(spare, money * 1e6 / prices.output)
            if output_tokens > spare:
                raise reply_stopped(lease, account, max(0, int(spare)), output_tokens)

    # --- the way out ---

    def leave(self, lease: Lease) -> None:
        """The call was not made: everything reserved goes back. Never waits; again it does nothing."""
        charges = lease.__dict__.pop("_charges", None)
        if charges:
            self._serial.post(lambda: self._undo(lease, charges))

    def _undo(self, lease: Lease, charges: tuple[Charge, ...]) -> None:
        if self._pace.forget(lease) is not None:
            self._pace.pump()
        for charge in charges:
            charge.account.give_back(charge)
            self._pace.correct(charge, 0.0)

    def settle(self, lease: Lease, how: int) -> None:
        """The call ended; `how` is the kernel's word for it. Never waits; again it does nothing."""
        charges: tuple[Charge, ...] | None = lease.__dict__.pop("_charges", None)
        if charges:
            held_s = (self._rm.clock.now_ns() - lease.granted_ns) / 1e9 if lease.granted_ns else 0.0
            self._serial.post(lambda: self._book(lease, charges, how & 3, held_s))

    def _book(self, lease: Lease, charges: tuple[Charge, ...], outcome: int, held_s: float) -> None:
        now, route, use = self._rm.clock.now_ns(), lease.route, lease._use
        is_model = route.kind == "model"
        prices = self._rm.prices.of(route.model) if is_model else None
        estimated = is_model and use is None
        for charge in charges:
            charge.account.roll(now)
            charge.account.give_back(charge)
            if outcome == REFUND:
                self._pace.correct(charge, 0.0)
                continue
            used = use or _estimate(lease, charge, outcome)
            money = 0.0 if prices is None else cost(prices, used) if use is not None else charge.amounts[USD]
            if outcome == FAILED and use is None and prices is not None:
                money = most(prices, used.input, 0)
            spent: Amounts = [1, used.tokens, money, held_s if charge.timed else 0.0]
            charge.account.spend(
                charge, spent, route.model, used if is_model else None, priced=prices is not None, estimated=estimated
            )
            if charge.account.budget.pace:
                self._pace.correct(charge, used.tokens)
        if use is not None and is_model:
            mean_in, mean_out = self._usual.get(lease.pool, (use.input, use.output))
            self._usual[lease.pool] = (mean_in + (use.input - mean_in) / 8, mean_out + (use.output - mean_out) / 8)

    def close(self) -> int:
        """Turns away who waits for a pace; returns how many."""
        with self._serial:
            return self._pace.close()

    # --- looking ---

    def statistics(self) -> dict[str, BudgetStatistics]:
        with self._serial:
            now = self._rm.clock.now_ns()
            return {name: account.statistics(now) for name, account in self._accounts.items()}

    def _reprice(self) -> Mapping[str, tuple[float, float]]:
        with self._serial:
            moved = {}
            for name, account in self._accounts.items():
                before = account.spent[USD]
                account.reprice(self._rm.prices)
                if account.spent[USD] != before:
                    moved[name] = (before, account.spent[USD])
            return moved


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def _input_of(lease: Lease, output_tokens: int) -> int:
    """What the input is taken to be while nobody has reported it."""
    total, inputs = lease._stated
    return inputs or 0 if total is None else max(0, total - output_tokens)


def _estimate(lease: Lease, charge: Charge, outcome: int) -> Use:
    """The use of a call that nobody reported: what was reserved, or its input if it failed."""
    reserved, output = int(charge.amounts[TOKENS]), lease._max_output or 0
    inputs = lease._stated[1]
    if outcome == FAILED:
        return Use(reserved if inputs is None else inputs, 0)
    if inputs is not None:
        return Use(min(inputs, reserved), max(0, reserved - inputs))
    return Use(max(0, reserved - output), min(output, reserved))
