"""What does the scheduler know of one backend? Whose context counts there, what runs, what may still be cached."""

from __future__ import annotations

import math

from agentrm.identity import PRIORITIES
from agentrm.programs.program import Program

__all__ = ["BackendState"]

_LOOK_S = 1e-4  # of each program that is looked at for room


class BackendState:
    """One engine with a KV cache of `capacity` tokens in blocks of `block` (1: it counts tokens singly).

    `used` is what counts: the private tokens of the resident programs and each shared prefix once, in whole blocks.
    What paused and ended programs left behind is not counted: the engine may overwrite it, but until then it is still
    warm.

    A block is one sequence's, or shared where all that share it have it full. So a running turn takes every block that
    it has begun, while between turns only full ones can be found again, and of a prefix only full ones are shared
    ("PagedAttention", arXiv 2309.06180, section 4.4).
    """

    __slots__ = (
        "backlog", "block", "capacity", "displaceable_at", "dropped", "look_at", "lowest", "name", "pausable",
        "prefill_rate", "prefixes", "private", "residents", "resting", "running", "serves", "shared", "slots", "up",
        "vain",
    )  # fmt: skip

    def __init__(self, name: str, capacity: int, prefill_rate: float, slots: int | None, block: int = 1) -> None:
        self.name, self.block, self.prefill_rate, self.slots = name, block, prefill_rate, slots
        self.capacity = self.full(capacity)
        self.up = True
        self.residents: dict[str, Program] = {}
        self.pausable: dict[str, Program] = {}
        """The residents of which no turn runs."""
        self.resting = 0
        """Their private tokens."""
        self.displaceable_at, self.lowest = math.inf, 0
        """No pausable one makes room for anybody before this moment, and none is of a lower class (a larger rank): so
        that whoever finds nobody to displace does not look at all of them again."""
        self.vain = [(-math.inf, math.inf, 0)] * len(PRIORITIES)
        """By class of who asked: until when it is believed that all of them do not free so many tokens, and which of
        the `serves` found it."""
        self.serves, self.look_at = 0, math.inf
        """Runs over the queue so far, and when one is due that looks at them again."""
        self.private = 0
        self.shared = 0
        self.prefixes: dict[str, list[int]] = {}
        """By key: tokens, resident programs that share them."""
        self.running = 0
        """Turns that run."""
        self.backlog = 0
        """Prompt tokens of granted turns that have not begun to answer and were not expected in the cache."""
        self.dropped = 0
        """Tokens that ever ceased to count: the clock of what is overwritten."""

    @property
    def used(self) -> int:
        return self.private + self.shared

    def cut(self, block: int) -> None:
        """Its blocks have another size; then each resident has to `claim` anew."""
        self.block, self.shared, self.prefixes = block, 0, {}
        for program in self.residents.values():
            program._prefix_on = False

    def full(self, tokens: int) -> int:
        """Tokens of the blocks that so many tokens fill."""
        return tokens // self.block * self.block

    def begun(self, tokens: int) -> int:
        """Tokens of the blocks that so many tokens need."""
        return -(-tokens // self.block) * self.block

    def shared_by(self, program: Program) -> int:
        """Tokens of the blocks that the program's prefix fills, corrected as its prompts are."""
        return 0 if program.prefix is None else self.full(round(program._ratio * program.prefix.tokens))

    def busy(self) -> int:
        """Private tokens of the programs of which a turn runs: what nobody can be asked to give up."""
        return self.private - self.resting

    def begins(self, program: Program) -> None:
        """A turn of the resident program runs from now on."""
        if self.pausable.pop(program.id, None) is not None:
            self.resting -= program._reserved

    def rests(self, program: Program) -> None:
        """No turn of the resident program runs any more."""
        self.pausable[program.id] = program
        self.resting += program._reserved

    def may_yield(self, at: float, rank: int) -> None:
        """One more pausable program makes room, for anybody from that moment on, for higher classes at once."""
        self.displaceable_at, self.lowest = min(self.displaceable_at, at), max(self.lowest, rank)

    def serving(self) -> None:
        """The queue is gone through anew."""
        self.serves, self.look_at = self.serves + 1, math.inf

    def in_vain(self, missing: int, rank: int, now: float) -> bool:
        """Whether it was found just now that the pausable ones do not free so much for a turn of this class. The more
        there are to look at, the longer that is believed, so that looking costs the same share of the time however many
        there are. What was found in an earlier run over the queue may have changed: then it is looked again as soon as
        it is believed no longer."""
        until, tokens, found = self.vain[rank]
        if missing < tokens or now >= until:
            return False
        if found < self.serves:
            self.look_at = min(self.look_at, until)
        return True

    def looked_in_vain(self, missing: int, rank: int, now: float) -> None:
        """All pausable ones were looked at, and do not free so much for a turn of this class."""
        self.vain[rank] = now + _LOOK_S * len(self.pausable), missing, self.serves

    def claim(self, program: Program, private: int) -> None:
        """The program counts with `private` tokens here from now on; makes it resident if it was not."""
        if program.status != "resident":
            self.residents[program.id] = program
            if not program.running:
                self.pausable[program.id] = program
            program.status, program.backend, program._reserved = "resident", self.name, 0
        if program.prefix is not None:
            entry = self.prefixes.setdefault(program.prefix.key, [0, 0])
            entry[1] += not program._prefix_on
            program._prefix_on = True
            self._resize(entry, self.shared_by(program))
        self.private += private - program._reserved
        if program.id in self.pausable:
            self.resting += private - program._reserved
        program._reserved = private

    def _resize(self, entry: list[int], tokens: int) -> None:
        if tokens > entry[0] or entry[1] == 1:
            self.shared += tokens - entry[0]
            entry[0] = tokens

    def drop(self, program: Program) -> None:
        """It counts here no longer."""
        del self.residents[program.id]
        self.begins(program)
        self.private -= program._reserved
        self.dropped += program._reserved
        program._dropped_at = self.dropped
        program._reserved = 0
        if program._prefix_on and program.prefix is not None:
            program._prefix_on = False
            entry = self.prefixes[program.prefix.key]
            entry[1] -= 1
            if not entry[1]:
                self.shared -= entry[0]
                del self.prefixes[program.prefix.key]

    def need(self, program: Program, private: int) -> int:
        """Tokens by which `used` would grow if the program counted with `private` tokens here."""
        own = program._reserved if program.status == "resident" and program.backend == self.name else 0
        shared = 0
        if program.prefix is not None:
            shared = max(0, self.shared_by(program) - self.prefixes.get(program.prefix.key, (0, 0))[0])
        return private - own + shared

    def frees(self, program: Program) -> int:
        """Tokens by which `used` would shrink without it."""
        prefix = program.prefix
        last = prefix is not None and program._prefix_on and self.prefixes[prefix.key][1] == 1
        return program._reserved + (self.prefixes[prefix.key][0] if last and prefix is not None else 0)

    def warm(self, program: Program, tokens: int) -> int:
        """How much of a prompt of `tokens` of the program is probably still in the cache.

        The engine overwrites what was used least recently first. So what a paused program left is whole as long as what
        counts now and what was dropped after it leave room for it.
        """
        here = program.backend == self.name
        if here and program.status == "resident":
            return self.full(min(tokens, program.context_tokens))
        found = 0
        if program.prefix is not None and program.prefix.key in self.prefixes:
            found = min(self.shared_by(program), self.prefixes[program.prefix.key][0])
        if here and program.status == "paused":
            room = self.capacity - self.used - (self.dropped - program._dropped_at)
            found = max(found, min(program.context_tokens, max(room, 0)))
        return self.full(min(found, tokens))

    def __repr__(self) -> str:
        return f"<Backend {self.name} {'up' if self.up else 'down'} {self.used}/{self.capacity} running {self.running}>"
