"""What the KV block pools of the C core do, said in plain Python: who uses a block is looked up, never counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

EXHAUSTED, AGENT_QUOTA, TENANT_QUOTA, STALE, ARGUMENT, FULL = "blocks", "agent", "tenant", "stale", "argument", "full"


class Refused(Exception):
    """`code`, and how many blocks are lacking."""

    def __init__(self, code: str, lacking: int = 0) -> None:
        super().__init__(code, lacking)
        self.answer = code, lacking


@dataclass(eq=False, slots=True)
class Block:
    id: int
    parent: Block | None = None
    hash: int | None = None
    shadow: bool = False
    agents: set[int] = field(default_factory=set)  # that have used it since it came into use
    score: float = 0.0


@dataclass(eq=False, slots=True)
class Chain:
    agent: int
    program: int
    tokens: int = 0
    blocks: list[Block] = field(default_factory=list)
    sealed: int = 0
    matched: int = 0
    held: Block | None = None  # source of a copy
    copy_at: int = 0
    open: bool = True
    handle: int = -1


class Model:
    """One pool of `size` blocks. `tenant_of` says which tenant each agent is of."""

    def __init__(self, size: int, block_tokens: int, tenant_of: Sequence[int], chains: int) -> None:
        self.size, self.block_tokens, self.tenant_of, self.room_for_chains = size, block_tokens, tenant_of, chains
        self.chains: list[Chain] = []
        self.cached: set[Block] = set()
        self.table: dict[int, Block] = {}
        self.free: list[int] = []
        self.high = 0
        self.clock = 0
        self.quotas: dict[tuple[str, int], int] = {}
        self.queries = self.hits = self.taken = self.evictions = 0
        self.went: list[tuple[int, int]] = []  # evicted by the last operation

    # --- what is ---

    def used(self) -> set[Block]:
        found = {b for c in self.chains for b in c.blocks}
        return found | {c.held for c in self.chains if c.held}

    def charged(self, agent: int) -> int:
        return sum(b.agents == {agent} for b in self.used())

    def charged_tenant(self, tenant: int) -> int:
        return sum({self.tenant_of[a] for a in b.agents} == {tenant} for b in self.used())

    def available(self) -> int:
        return self.size - len(self.used())

    def quota_room(self, agent: int) -> tuple[float, str]:
        tenant = self.tenant_of[agent]
        own = self.quotas.get(("agent", agent), float("inf")) - self.charged(agent)
        every = self.quotas.get(("tenant", tenant), float("inf")) - self.charged_tenant(tenant)
        return max(0, min(own, every)), AGENT_QUOTA if own <= every else TENANT_QUOTA

    def refuse_if_lacking(self, agent: int, need: int) -> None:
        room, whose = self.quota_room(agent)
        if need > self.available():
            raise Refused(EXHAUSTED, need - self.available())
        if need > room:
            raise Refused(whose, int(need - room))

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def survey(self, tail: Block | None, hashes: Sequence[int]) -> list[Block]:
        """Resident blocks of the hashes that continue `tail`, in the order of the path that ends with the last."""
        found: list[Block] = []
        straight: int | None = None
        before = tail
        for h in hashes:
            b = self.table.get(h)
            if b is None:
                break
            if b.parent is not before:
                if b.parent is None or before is None or b.parent.hash != before.hash:
                    break
                straight = len(found) if straight is None else straight
            found.append(b)
            before = b
        if straight is None:
            return found
        path: list[Block] = []
        up: Block | None = found[-1] if found else None
        while up is not None and up is not tail and len(path) < len(found):
            path.insert(0, up)
            up = up.parent
        return path if up is tail and len(path) == len(found) else found[:straight]

    # --- blocks come and go ---

    def evict_one(self) -> Block:
        parents = {b.parent for b in self.cached}
        b = min((x for x in self.cached if x not in parents), key=lambda x: (x.score, x.id))
        self.cached.remove(b)
        if b.parent in self.cached and b.parent not in {x.parent for x in self.cached}:
            b.parent.score = max(b.parent.score, b.score)
        if not b.shadow:
            del self.table[b.hash]
        self.evictions += 1
        self.went.append((b.id, b.hash))
        return b

    def take(self, parent: Block | None) -> Block:
        self.taken += 1
        if self.free:
            return Block(self.free.pop(), parent)
        if self.high < self.size:
            self.high += 1
            return Block(self.high - 1, parent)
        return Block(self.evict_one().id, parent)

    def seal(self, b: Block, h: int) -> None:
        if b.hash is None:
            b.hash, b.shadow = h, h in self.table
            self.table.setdefault(h, b)

    def out_of_use(self, before: Iterable[Block], score: float, keep: bool) -> int:
        """Blocks that were in use before the chain became shorter and are not any more, the last ones first."""
        gone = set(before) - self.used()

        def depth(b: Block) -> int:
            return 1 + depth(b.parent) if b.parent else 0

        for b in sorted(gone, key=depth, reverse=True):
            b.agents = set()
            if any(x.parent is b for x in self.cached) or (b.hash is not None and keep and not b.shadow):
                b.score = score
                self.cached.add(b)
            else:
                self.free.append(b.id)
                if b.hash is not None and not b.shadow:
                    del self.table[b.hash]
        return len(gone)

    def score(self, given: float | None) -> float:
        if given is None:
            self.clock += 1
        return self.clock if given is None else given

    # --- the operations ---

    def live(self, chain: Chain) -> None:
        self.went = []
        if not chain.open:
            raise Refused(STALE)

    def grow(self, chain: Chain, base: int, hashes: Sequence[int], found: list[Block], total: int) -> None:
        self.cached -= set(found)
        chain.blocks += found
        if found:
            chain.sealed = len(chain.blocks)
        while len(chain.blocks) < total:
            b = self.take(chain.blocks[-1] if chain.blocks else None)
            i = len(chain.blocks) - base
            if 0 <= i < len(hashes) and chain.sealed == len(chain.blocks):
                self.seal(b, hashes[i])
                chain.sealed += 1
            chain.blocks.append(b)
        for b in chain.blocks:
            b.agents.add(chain.agent)

    def open(self, agent: int, tokens: int, hashes: Sequence[int], program: int) -> Chain:
        self.went = []
        if tokens and len(hashes) > tokens // self.block_tokens:
            raise Refused(ARGUMENT)
        found = self.survey(None, hashes)
        cached = sum(b in self.cached for b in found)
        total = self.blocks_for(tokens)
        if tokens:
            self.refuse_if_lacking(agent, total - (len(found) - cached))
        else:
            some = int(min(cached, self.available(), self.quota_room(agent)[0]))
            found = found[: len(found) - cached + some]
            total = len(found)
            tokens = total * self.block_tokens
        if len(self.chains) == self.room_for_chains:
            raise Refused(FULL)
        chain = Chain(agent, program, tokens, matched=len(found))
        self.chains.append(chain)
        self.queries += len(hashes)
        self.hits += len(found)
        self.grow(chain, 0, hashes, found, total)
        return chain

    def let_go(self, chain: Chain, score: float, keep: bool) -> int:
        before = self.used()
        chain.held = None
        return self.out_of_use(before, score, keep)

    def extend(self, chain: Chain, tokens: int, hashes: Sequence[int]) -> int:
        self.live(chain)
        if chain.held:
            self.let_go(chain, self.score(None), True)
        every = chain.tokens + tokens
        if chain.sealed + len(hashes) > every // self.block_tokens:
            raise Refused(ARGUMENT)
        partly = chain.tokens % self.block_tokens != 0
        copy = False
        if tokens and partly:
            tail = chain.blocks[-1]
            others = [c for c in self.chains if c is not chain and (tail in c.blocks or tail is c.held)]
            copy = bool(others) or tail.hash is not None
        length = len(chain.blocks)
        matching = bool(hashes) and chain.sealed == length and not partly
        found = self.survey(chain.blocks[-1] if chain.blocks else None, hashes) if matching else []
        cached = sum(b in self.cached for b in found)
        total = self.blocks_for(every)
        self.refuse_if_lacking(chain.agent, total - length + copy - (len(found) - cached))
        if matching:
            self.queries += len(hashes)
            self.hits += len(found)
        chain.tokens = every
        if copy:
            chain.held = chain.blocks[-1]
            chain.copy_at = length - 1
            chain.blocks[-1] = self.take(chain.held.parent)
        base = chain.sealed
        end = min(length, base + len(hashes))
        for at in range(end - 1, base - 1, -1):
            self.seal(chain.blocks[at], hashes[at - base])
        chain.sealed = max(base, end)
        self.grow(chain, base, hashes, found, total)
        return len(found)

    def fork(self, chain: Chain, program: int) -> Chain:
        self.live(chain)
        if len(self.chains) == self.room_for_chains:
            raise Refused(FULL)
        fork = Chain(chain.agent, program, chain.tokens, list(chain.blocks), chain.sealed)
        self.chains.append(fork)
        return fork

    def truncate(self, chain: Chain, tokens: int, keep: bool, given: float | None) -> int:
        self.live(chain)
        if tokens > chain.tokens:
            raise Refused(ARGUMENT)
        score = self.score(given)
        n = self.let_go(chain, score, keep)
        before = self.used()
        del chain.blocks[self.blocks_for(tokens) :]
        chain.sealed = min(chain.sealed, tokens // self.block_tokens)
        chain.tokens = tokens
        return n + self.out_of_use(before, score, keep)

    def release(self, chain: Chain, keep: bool, given: float | None) -> int:
        self.live(chain)
        score = self.score(given)
        n = self.let_go(chain, score, keep)
        before = self.used()
        self.chains.remove(chain)
        chain.open = False
        return n + self.out_of_use(before, score, keep)

    def evict(self, n: int) -> list[tuple[int, int]]:
        self.went = []
        for _ in range(min(n, len(self.cached))):
            self.free.append(self.evict_one().id)
        return self.went

    def rescore(self, hashes: Sequence[int], score: float) -> int:
        for i, h in enumerate(hashes):
            if h not in self.table:
                return i
            if self.table[h] in self.cached:
                self.table[h].score = score
        return len(hashes)
