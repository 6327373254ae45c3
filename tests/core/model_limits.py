"""The model's limits and scopes: what may start now, when the next may, and what a finished call corrects."""

from __future__ import annotations

from math import gcd

FULL = 65_536  # a scope's factor at full pace
QUIET = 24  # successes after which what was shown is over
GAP_FIRST, GAP_FREE = 100_000, 50_000  # the first gap after a refusal; one that no longer matters


def trunc(a: int, b: int) -> int:
    """Division as in C: towards zero."""
    return a // b if a >= 0 else -(-a // b)


class Rolling:
    """At most `amount` in every window. An entry of microsecond s may lie anywhere in [s, s + 1)."""

    def __init__(self, amount: int, window_us: int) -> None:
        self.amount = self.capacity = amount
        self.window = window_us
        self.entries: list[list[int]] = []  # [time, amount]

    def used(self, now: int) -> int:
        while self.entries and self.entries[0][0] + self.window + 1 <= now:
            self.entries.pop(0)
        return sum(amount for _, amount in self.entries)

    def room(self, need: int, now: int) -> bool:
        if need > self.capacity:  # oversize debt: alone in an empty window
            return self.used(now) == 0
        return self.used(now) + need <= self.amount

    def due(self, need: int, now: int) -> int:
        used, at = self.used(now), now
        target = 0 if need > self.capacity else self.amount - need
        for time, amount in self.entries:
            if used <= target:
                break
            used -= amount
            at = time + self.window + 1
        return max(at, now)

    def take(self, need: int, now: int) -> list[int]:
        self.used(now)
        entry = [max(now, self.entries[-1][0]) if self.entries else now, need]
        self.entries.append(entry)
        return entry

    def correct(self, entry: list[int] | None, reserved: int, real: int, now: int) -> None:
        if reserved == real:
            return
        self.used(now)
        if not any(e is entry for e in self.entries):  # it has left the window
            if real > reserved:
                self.take(real - reserved, now)
            return
        assert entry is not None
        entry[1] = max(0, entry[1] + real - reserved)
        if entry[1] == 0 and self.entries[-1] is entry:
            self.entries.pop()

    def level(self, now: int) -> int:
        return self.amount - self.used(now)

    def provider_says(self, remaining: int, now: int) -> None:
        unseen = self.amount - remaining - self.used(now)
        if unseen > 0:
            self.take(unseen, now)


class Bucket:
    """Refills continuously; `num` units come in a microsecond and `den` units make a token."""

    def __init__(self, amount: int, window_us: int, burst: int) -> None:
        self.amount, self.window, self.capacity = amount, window_us, burst
        self.num, self.den = amount // gcd(amount, window_us), window_us // gcd(amount, window_us)
        self.full = self.units = burst * self.den
        self.last = 0

    def units_at(self, now: int) -> int:
        return min(self.full, self.units + max(0, now - self.last) * self.num)

    def fill(self, units: int, now: int) -> None:
        self.units, self.last = min(units, self.full), max(self.last, now)

    def room(self, need: int, now: int) -> bool:
        return self.units_at(now) >= min(need, self.capacity) * self.den  # oversize debt: at a full bucket

    def due(self, need: int, now: int) -> int:
        lack = min(need, self.capacity) * self.den - self.units_at(now)
        return now if lack <= 0 else max(now, self.last) - -lack // self.num

    def take(self, need: int, now: int) -> None:
        self.fill(self.units_at(now) - need * self.den, now)

    def correct(self, entry: object, reserved: int, real: int, now: int) -> None:
        if reserved != real:
            self.fill(self.units_at(now) + (reserved - real) * self.den, now)

    def level(self, now: int) -> int:
        return trunc(self.units_at(now), self.den)

    def provider_says(self, remaining: int, now: int) -> None:
        self.fill(min(remaining, self.capacity) * self.den, now)


class Gauge:
    """So much is held at a time; only the end of a call gives it back."""

    def __init__(self, amount: int) -> None:
        self.amount = self.capacity = amount
        self.window = 0
        self.held = 0

    def room(self, need: int, now: int) -> bool:
        return self.held + need <= self.amount

    def due(self, need: int, now: int) -> None:
        return None

    def take(self, need: int, now: int) -> None:
        self.held += need

    def correct(self, entry: object, reserved: int, real: int, now: int) -> None:
        self.held = max(0, self.held - reserved)

    def level(self, now: int) -> int:
        return self.amount - self.held


class Scope:
    """Closed until a time, then with a gap between two starts: as much as it was shown to take, and a quarter more."""

    def __init__(self, pool: int = -1) -> None:
        self.pool = pool
        self.until = self.next = self.cut = self.opened = self._gap = 0
        self.wins = self.starts = self.run = self.shown = 0  # since it opened; starts before the cut before; the gap shown
        self.last = self.interval = 0  # the usual distance of two starts
        self.parked: tuple[list, list, list] = ([], [], [])  # by level

    def gap(self) -> int:
        return self._gap

    @property
    def factor(self) -> int:
        return max(1, FULL * GAP_FREE // self._gap) if self._gap else FULL

    def open_at(self, now: int) -> int:
        """0: open."""
        at = max(self.until, self.next if self._gap else 0)
        return at if at > now else 0

    def started(self, now: int) -> None:
        if self.last:
            self.interval += trunc(now - self.last - self.interval, 8)
        self.last = now
        if self.cut:
            self.opened = self.opened or now
            self.starts += 1
            self.next = now + self._gap

    def forget(self) -> None:
        self._gap = self.cut = self.opened = self.wins = self.starts = self.run = self.shown = 0

    def succeeded(self) -> None:
        if not self.cut:
            return
        gap, shown = self._gap, self.shown if self.wins < QUIET else 0
        gap = max(gap - gap // 8 - 1, min(gap - 1, shown)) if gap > shown else gap - gap // 64 - 1
        if gap < GAP_FREE:
            self.forget()
        else:
            self._gap, self.wins = gap, self.wins + 1

    def penalise(self, until: int, cut: int, since: int, now: int) -> None:
        self.until = max(self.until, until)
        if not cut or since < self.cut:  # calls that began before the last cut say nothing new
            return
        base = self._gap or min(2_000_000, self.interval)
        guess = max(GAP_FIRST, base * 5 // 4 if cut == 2 else base * 2)
        run = self.starts - 1 if self.opened else 0  # the last one was refused
        if 0 < run <= 8 and run == self.run:  # a provider that counts in windows
            self.shown = guess = max(GAP_FIRST, (max(until, now) - self.opened) // run * 5 // 4)
        self.run, self.starts = run, 0
        self._gap = min(60_000_000, guess)
        self.cut, self.opened, self.wins = now + 1, 0, 0
        self.next = until if until > now else now + self._gap

    def park(self, ticket) -> None:
        """In the order in which they step aside; one that was back at the front once goes before those that were
        not."""
        line = self.parked[ticket.level]
        at = len(line)
        if ticket.front:
            at = next((i for i, t in enumerate(line) if not t.front or t.arrival > ticket.arrival), at)
        line.insert(at, ticket)

    def first_parked(self):
        return next((line[0] for line in self.parked if line), None)

    def count(self) -> int:
        return sum(map(len, self.parked))
