"""KV blocks from Python: which program holds which blocks of a backend's KV cache, what stays cached, what goes first.

The pool counts; the blocks' contents are the engine's. `csrc/arm_kv.h` is the theory of operation, docs/kv-blocks.md
explains it. Every call is one crossing into C, all or nothing, with the GIL held.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from hashlib import blake2b
from types import MethodType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from agentrm.core._agentrm_core import ffi, lib
from agentrm.core.chains import BlockStatistics, Chain, Evicted, Taken, chain_of
from agentrm.core.kernel import MEANING, Kernel, KernelConfig, KVPool
from agentrm.errors import BlockQuotaExceeded, BlocksExhausted, KernelError

__all__ = ["BlockPool", "block_hashes"]

_PUBLIC = (
    "account", "quota", "charged", "open", "extend", "seal", "fork", "truncate", "release", "drop", "evict", "rescore",
    "resident", "blocks", "chain", "chains", "statistics", "check",
)  # fmt: skip


def block_hashes(tokens: Iterable[int], block_tokens: int, *, parent: bytes = b"", salt: bytes = b"") -> bytes:
    """Chained hashes of the full blocks of a token sequence, 8 bytes each, ready for `BlockPool.open` and `extend`.

    A block's hash covers its tokens and all before it. `parent` is the hash (8 bytes) of the block before the first of
    `tokens`, empty at the start of a sequence. Sequences hashed with different `salt`s (at most 64 bytes) never share a
    block: use one a tenant where a shared prefix must not tell one what another has asked, and one a process, drawn at
    random, where callers are not trusted (as the key of the hash it keeps them from finding collisions).
    """
    data = array.array("q", tokens).tobytes()
    size = block_tokens * 8
    out = []
    for i in range(0, len(data) - size + 1, size):
        parent = blake2b(parent + data[i : i + size], digest_size=8, key=salt).digest()
        out.append(parent)
    return b"".join(out)


class _Account(int):
    """The handle of an agent, which knows whose it is for as long as its holder keeps it: nothing else has to."""

    agent: str
    tenant: str

    def __new__(cls, handle: int, agent: str, tenant: str) -> _Account:
        made = super().__new__(cls, handle)
        made.agent, made.tenant = agent, tenant
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return _Account, (int(self), self.agent, self.tenant)


P = ParamSpec("P")
T = TypeVar("T")


def _in_64_bits(method: Callable[Concatenate[BlockPool, P], T]) -> Callable[Concatenate[BlockPool, P], T]:
    """Numbers that C can't take are refused as others are. For what is not on the hot path."""

    @wraps(method)
    def checked(self: BlockPool, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except OverflowError:
            self._too_large(method.__name__)

    return checked


class BlockPool:
    """The blocks of one backend.

    A *chain* is what one program has: its blocks in order, the last perhaps partly filled. Full blocks may have the
    chained hash of their content (`block_hashes`); a chain that comes with the same hashes shares those blocks, so that
    a common system prompt exists and counts once. A released chain's hashed blocks stay *cached*: they count as room,
    and go when room is needed, the lowest score first, later blocks of a chain before earlier ones.

    Guarantees: an operation is done whole or not at all; the counts are exact at any moment, also in a shared arena
    where participants die; no call waits. Handles of ended chains raise KernelError and change nothing. The GIL
    serialises the calls of several threads.
    """

    def __init__(self, kernel: Kernel, index: int = 0, name: str = "kv") -> None:
        """Pool `index` of a kernel made with `KernelConfig(kv=(...))`; `name` is for error texts."""
        self.kernel, self.index, self.name = kernel, index, name
        self._ctx = kernel._ctx
        self._who = index << 24
        # As in Kernel: C functions with the context bound.
        self._open: Callable[[int, int, int, bytes, int, Any], int] = MethodType(lib.arm_kv_open, self._ctx)
        self._extend: Callable[[int, int, bytes, int, Any], int] = MethodType(lib.arm_kv_extend, self._ctx)
        self._release: Callable[[int, int, float], int] = MethodType(lib.arm_kv_release, self._ctx)
        self._give: Callable[[int], int] = MethodType(lib.arm_kv_give, self._ctx)
        info = self._info()
        self.capacity: int = info.blocks
        self.block_tokens: int = info.block_tokens
        kernel._ports.add(self)

    @classmethod
    def alone(
        cls,
        blocks: int,
        block_tokens: int,
        *,
        chains: int = 4_096,
        agents: int = 1_024,
        tenants: int = 64,
        name: str = "kv",
    ) -> BlockPool:
        """A pool in a private arena of its own: `blocks` blocks of `block_tokens` tokens. Raises KernelError for
        numbers that cannot be."""
        tables = {"chains": chains, "agents": agents, "tenants": tenants}
        for what, number in {"blocks": blocks, "block_tokens": block_tokens, **tables}.items():
            if not 0 <= number < 1 << 31:
                raise KernelError(f"KV pool {name!r}: {what}={number}; it must be from 1 to {(1 << 31) - 1}")
        config = KernelConfig(
            pools=(), tickets=1, agents=agents, tenants=tenants, scopes=1, owners=1, events=0,
            kv=(KVPool(blocks, block_tokens),), chains=chains,
        )  # fmt: skip
        return cls(Kernel(config), 0, name)

    # --- who is charged ---

    def account(self, agent: str = "default", tenant: str = "default") -> int:
        """Handle of an agent of a tenant, for `open`; made when new. Keep it: this is not for the hot path."""
        return _Account(self.kernel.agent(agent, self.kernel.tenant(tenant)), agent, tenant)

    @_in_64_bits
    def quota(self, blocks: int | None, *, agent: int | None = None, tenant: str | None = None) -> None:
        """Bounds the blocks in use that are charged to an agent (its `account`) or a tenant; None: no bound. Of what it
        has already nothing is taken away. Blocks that several agents share are charged to their tenant alone, and those
        that several tenants share to nobody; cached blocks are charged to nobody. An agent without chains may lose its
        place in a full table of names to another, and its quota with it."""
        of_tenant, index = self._charged_one(agent, tenant)
        if blocks is not None and not 0 < blocks < 1 << 24:
            raise KernelError(
                f"KV pool {self.name!r}: a quota of {blocks} blocks; it must be from 1 to {(1 << 24) - 1}"
            )
        rc = lib.arm_kv_quota(self._ctx, self.index, of_tenant, index, blocks or 0)
        if rc < 0:
            self._refuse(rc, "set a quota")

    @_in_64_bits
    def charged(self, *, agent: int | None = None, tenant: str | None = None) -> int:
        """Blocks charged to an agent (its `account`) or a tenant now."""
        of_tenant, index = self._charged_one(agent, tenant)
        out = ffi.new("int64_t[2]")
        rc = lib.arm_kv_charge(self._ctx, self.index, of_tenant, index, out, out + 1)
        if rc < 0:
            self._refuse(rc, "look at a charge")
        return int(out[0])

    def _charged_one(self, agent: int | None, tenant: str | None) -> tuple[int, int]:
        if (agent is None) == (tenant is None):
            raise KernelError("name either an agent or a tenant")
        return (0, agent) if agent is not None else (1, self.kernel.tenant(tenant or ""))

    # --- chains ---

    def open(
        self, account: int, tokens: int = 0, hashes: bytes = b"", program: int = 0, evicted: list[Evicted] | None = None
    ) -> int:
        """Opens a chain and returns its handle.

        `hashes` are those of its leading full blocks. With `tokens` 0 the chain is as long as what is resident of them
        (as far as quota and room allow); else it has room for `tokens`, of which the leading resident blocks are shared
        and the others taken, with their hashes at once: another program that comes with the same ones shares blocks
        whose content is still being computed. `chain(handle).matched` says how many were shared.

        `program` is any number that the caller knows the program by. The cached blocks that had to go are appended to
        `evicted` if it is given, so that an engine may save their content before it writes into them.

        Raises BlocksExhausted or BlockQuotaExceeded, each with `lacking`; KernelError if all chains are in use.
        """
        try:
            if evicted is not None:
                taken = Taken(self._room(tokens))
                rc = self._open(account | self._who, program, tokens, hashes, len(hashes) >> 3, taken.c)
                evicted += taken.evicted()
            else:
                rc = self._open(account | self._who, program, tokens, hashes, len(hashes) >> 3, _NULL)
        except OverflowError:
            self._too_large("open")
        if rc < 0:
            if rc == lib.ARM_E_AGENT and isinstance(account, _Account):  # its place in the table was given away
                return self.open(self.account(account.agent, account.tenant), tokens, hashes, program, evicted)
            self._refuse(rc, f"open a chain of {tokens} tokens", account)
        return rc

    def extend(self, chain: int, tokens: int, hashes: bytes = b"", evicted: list[Evicted] | None = None) -> int:
        """Room for `tokens` more (0 is allowed); returns how many of the new blocks were resident already.

        `hashes` are those of the chain's next full blocks that have none yet, in order: some of them may have become
        full before, some only now. If the chain ends with a full block that has its hash, new blocks whose hashes are
        resident are shared. If the last block is partly filled and others read it too (after `fork`, or after
        `truncate` into a hashed block), a copy takes its place: see `Chain.copy`.

        Raises as `open` does; then the chain is as it was, but for the source of an earlier copy being let go.
        """
        try:
            if evicted is None:
                rc = self._extend(chain, tokens, hashes, len(hashes) >> 3, _NULL)
            else:
                taken = Taken(self._room(tokens))
                rc = self._extend(chain, tokens, hashes, len(hashes) >> 3, taken.c)
                evicted += taken.evicted()
        except OverflowError:
            self._too_large("extend")
        if rc < 0:
            self._refuse(rc, f"extend a chain by {tokens} tokens")
        return rc

    def seal(self, chain: int, hashes: bytes) -> None:
        """The hashes of the chain's next full blocks that have none yet have become known."""
        self.extend(chain, 0, hashes)

    @_in_64_bits
    def fork(self, chain: int, program: int = 0) -> int:
        """A second chain with the same blocks, all of them shared, for the same account; returns its handle. Takes no
        block: whichever of the two first extends a partly filled last block gets a copy."""
        rc: int = lib.arm_kv_fork(self._ctx, chain, program)
        return rc if rc >= 0 else self._refuse(rc, "fork a chain")

    @_in_64_bits
    def truncate(self, chain: int, tokens: int, *, keep: bool = True, score: float | None = None) -> int:
        """Shortens a chain to `tokens`. What it leaves is cached with `score` (as by `release`) if `keep`, else
        dropped. Returns how many blocks are not in use any more."""
        how = lib.ARM_KV_RELEASE if keep else lib.ARM_KV_DROP
        rc: int = lib.arm_kv_truncate(self._ctx, chain, tokens, how, -1.0 if score is None else score)
        return rc if rc >= 0 else self._refuse(rc, f"truncate a chain to {tokens} tokens")

    def release(self, chain: int, score: float | None = None) -> int:
        """Ends a chain. Its hashed blocks stay cached, its other ones are free at once; what other chains share is not
        touched. Returns how many blocks are not in use any more.

        `score`, 0 or more, says what they are worth (for instance recompute cost over the time until the next use): the
        lowest goes first. None is least recently released first, on the scale of the pool's count of releases.
        """
        try:
            rc = self._give(chain) if score is None else self._release(chain, lib.ARM_KV_RELEASE, score)
        except OverflowError:
            self._too_large("release")
        return rc if rc >= 0 else self._refuse(rc, "release a chain")

    def drop(self, chain: int) -> int:
        """Ends a chain and keeps nothing of it but what other programs' cached blocks are built on. Returns how many
        blocks are not in use any more."""
        try:
            rc = self._release(chain, lib.ARM_KV_DROP, -1.0)
        except OverflowError:
            self._too_large("drop")
        return rc if rc >= 0 else self._refuse(rc, "drop a chain")

    # --- the cache ---

    @_in_64_bits
    def evict(self, blocks: int) -> list[Evicted]:
        """Takes up to `blocks` cached blocks out of the cache, lowest score first, and says which they were."""
        taken = Taken(max(0, min(blocks, self.capacity)))
        rc = lib.arm_kv_evict(self._ctx, self.index, blocks, taken.c)
        return taken.evicted() if rc >= 0 else self._refuse(rc, f"evict {blocks} blocks")

    @_in_64_bits
    def rescore(self, hashes: bytes, score: float) -> int:
        """Gives the cached ones among the leading resident blocks of `hashes` another score; returns how many are
        resident."""
        rc: int = lib.arm_kv_rescore(self._ctx, self.index, hashes, len(hashes) >> 3, score)
        return rc if rc >= 0 else self._refuse(rc, f"set the score {score}")

    def resident(self, hashes: bytes) -> int:
        """How many leading blocks of `hashes` are resident now, in use or cached."""
        rc: int = lib.arm_kv_resident(self._ctx, self.index, hashes, len(hashes) >> 3)
        return rc if rc >= 0 else self._refuse(rc, "look for hashes")

    # --- looking ---

    @_in_64_bits
    def blocks(self, chain: int, start: int = 0) -> list[int]:
        """The blocks of a chain in order, from position `start` on, as numbers from 0 to `capacity` - 1."""
        room = 64
        while True:
            out = ffi.new("int32_t[]", room)
            length = lib.arm_kv_blocks(self._ctx, chain, start, out, room)
            if length < 0:
                self._refuse(length, "look at a chain")
            if length - start <= room:
                return ffi.unpack(out, length - start) if length > start else []
            room = length - start

    def chain(self, chain: int) -> Chain:
        """What a chain is now. Raises KernelError if it has ended."""
        out = ffi.new("arm_kv_chain_info *")
        if chain < 0 or lib.arm_kv_chain_at(self._ctx, chain & 0xFFFFFF, out) < 0 or out.handle != chain:
            self._refuse(lib.ARM_E_STALE, "look at a chain")
        return chain_of(out)

    def chains(self) -> Iterator[Chain]:
        """Every chain of the pool that is open now."""
        out = ffi.new("arm_kv_chain_info *")
        for i in range(lib.arm_kv_chain_count(self._ctx)):
            lib.arm_kv_chain_at(self._ctx, i, out)
            if out.handle and out.pool == self.index:
                yield chain_of(out)

    def statistics(self) -> BlockStatistics:
        x = self._info()
        return BlockStatistics(
            x.blocks,
            x.block_tokens,
            x.used,
            x.cached,
            x.free,
            x.reserved,
            x.chains,
            x.queries,
            x.hits,
            x.taken,
            x.evicted,
        )

    def check(self) -> None:
        """Raises KernelError if an invariant of the arena's pools does not hold (tests; looks at everything)."""
        why = ffi.new("char[200]")
        if lib.arm_kv_check(self._ctx, why, 200):
            raise KernelError(f"invariant broken: {ffi.string(why).decode()}")

    def poison(self, refuse: Callable[..., Any]) -> None:
        """After fork: every further use raises ForkedError."""
        for name in _PUBLIC:
            setattr(self, name, refuse)

    def __repr__(self) -> str:
        x = self._info()
        return f"<BlockPool {self.name!r}: {x.used} used, {x.cached} cached, {x.free} free of {x.blocks}>"

    def _info(self) -> Any:
        out = ffi.new("arm_kv_info *")
        rc = lib.arm_kv_at(self._ctx, self.index, out)
        if rc < 0:
            self._refuse(rc, f"find KV pool {self.index}")
        return out

    def _room(self, tokens: int) -> int:
        return min(max(tokens, 0) // self.block_tokens + 2, self.capacity)

    def _too_large(self, what: str) -> NoReturn:
        numbers = f"whole numbers go from {-(1 << 63)} to {(1 << 63) - 1}"
        raise KernelError(f"could not {what}: KV pool {self.name!r}: {numbers}")

    def _refuse(self, rc: int, what: str, account: int | None = None) -> NoReturn:
        code, lacking = -(-rc & 0xFF), -rc >> 8
        pool = f"KV pool {self.name!r}"
        if code == lib.ARM_E_BLOCKS:
            raise BlocksExhausted(
                f"could not {what}: {pool} of {self.capacity} blocks lacks {lacking}; release chains first",
                pool=self.name,
                lacking=lacking,
            )
        if code in (lib.ARM_E_QUOTA_AGENT, lib.ARM_E_QUOTA_TENANT):
            of = "agent" if code == lib.ARM_E_QUOTA_AGENT else "tenant"
            agent = account.agent if isinstance(account, _Account) else None
            raise BlockQuotaExceeded(
                f"could not {what}: in {pool} the quota of the {of} lacks {lacking}; release chains or raise it",
                pool=self.name,
                agent=agent,
                of=of,
                lacking=lacking,
            )
        raise KernelError(f"could not {what}: {pool}: {_MEANING.get(code, f'code {code}')}")


_NULL = ffi.NULL
_MEANING = MEANING | {
    lib.ARM_E_STALE: "the handle is of a chain that ended",
    lib.ARM_E_FULL: "all chains are in use; make the arena with more `chains`",
    lib.ARM_E_STATE: "another participant is in the middle of an operation on the chain",
    lib.ARM_E_AGENT: "the account is not one of this arena",
}
