"""The block pools of the C core and their Python model, side by side: the same calls give the same answers."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentrm.core import BlockPool, Evicted, Kernel, KernelConfig, KVPool
from agentrm.errors import BlockQuotaExceeded, BlocksExhausted, KernelError
from tests.core import model_blocks as m

BLOCK = 3
TENANT_OF = (0, 0, 1)
CHAINS = 9
SIZES = {"small": 7, "middling": 24, "long": 700}
TEXTS = 4
KINDS = {"ended": m.STALE, "range": m.ARGUMENT, "all chains": m.FULL}
SEED = int(os.environ.get("AGENTRM_MODEL_SEED", "20250"))
EXAMPLES = int(os.environ.get("AGENTRM_MODEL_EXAMPLES", "25"))
SCORES = st.sampled_from((None, None, 0.0, 1.5, 2.5, 7.0))


def pack(hashes: Sequence[int]) -> bytes:
    return struct.pack(f"={len(hashes)}Q", *hashes)


class Agreement(RuleBasedStateMachine):
    size_name = "small"
    honest = True
    participants = 0

    @initialize()
    def start(self) -> None:
        """0 participants: a private arena, which has one and keeps no log."""
        size = SIZES[self.size_name]
        config = KernelConfig(
            pools=(), tickets=1, agents=4, tenants=4, scopes=1, owners=4, events=0, chains=CHAINS,
            kv=(KVPool(2, 5), KVPool(size, BLOCK)), shared=self.participants > 0,
        )  # fmt: skip
        memory = mmap.mmap(-1, 1 << 21)
        kernels = [Kernel(config, memory)]
        kernels += [Kernel(None, memory, attach=True) for _ in range(self.participants - 1)]
        self.pools = [BlockPool(k, 1) for k in kernels]
        self.accounts = [self.pools[0].account(f"agent {i}", f"tenant {t}") for i, t in enumerate(TENANT_OF)]
        self.model = m.Model(size, BLOCK, TENANT_OF, CHAINS)
        self.past: list[m.Chain] = []
        self.text_of: dict[m.Chain, int] = {}
        self.large = size > 100

    # --- drawing and comparing ---

    def pool(self, data: st.DataObject) -> BlockPool:
        return data.draw(st.sampled_from(self.pools)) if len(self.pools) > 1 else self.pools[0]

    def tokens(self, data: st.DataObject) -> int:
        if self.large:
            return data.draw(st.sampled_from((0, 1, 4, 200, 431, 900, 1500, 2000)))
        return data.draw(st.integers(0, 12))

    def hashes(self, data: st.DataObject, text: int, start: int, most: int) -> list[int]:
        """Of the blocks of a text from position `start` on; two texts share their beginning. Dishonest callers give
        any hashes at all."""
        n = data.draw(st.integers(0, most)) if data.draw(st.booleans()) else most
        if not self.honest:
            return data.draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
        fork = 40 if self.large else 2
        return [
            1 << 50 | at if at < fork * (1 + text // 2) else (text + 2) << 52 | at for at in range(start, start + n)
        ]

    def chain(self, data: st.DataObject) -> m.Chain:
        live = [c for c in self.past if c.open]
        if not live or data.draw(st.integers(0, 14)) == 14:
            live = self.past[-12:]
        return data.draw(st.sampled_from(live))

    def both(self, real: object, model: object) -> tuple[object, object]:
        """Answers of both, refusals as data."""
        answers: list[object] = []
        for ask in (real, model):
            try:
                answers.append(ask())  # type: ignore[operator]
            except m.Refused as refused:
                answers.append(refused.answer)
            except BlocksExhausted as refused:
                answers.append((m.EXHAUSTED, refused.lacking))
            except BlockQuotaExceeded as refused:
                answers.append((refused.of, refused.lacking))
            except KernelError as refused:
                answers.append((next(kind for text, kind in KINDS.items() if text in str(refused)), 0))
        return answers[0], answers[1]

    def agree_on_evicted(self, evicted: list[Evicted]) -> None:
        assert [(e.block, struct.unpack("=Q", e.hash)[0]) for e in evicted] == self.model.went

    # --- the calls ---

    @rule(data=st.data(), agent=st.integers(0, 2), text=st.integers(0, TEXTS - 1), longer=st.integers(0, 2))
    def open(self, data: st.DataObject, agent: int, text: int, longer: int) -> None:
        tokens, pool = self.tokens(data), self.pool(data)
        most = tokens // BLOCK + (longer == 2) if tokens else 6 + self.large * 300
        hashes = self.hashes(data, text, 0, most)
        evicted: list[Evicted] = []
        real, model = self.both(
            lambda: pool.open(self.accounts[agent], tokens, pack(hashes), agent + 5, evicted),
            lambda: self.model.open(agent, tokens, hashes, agent + 5),
        )
        if isinstance(model, m.Chain):
            assert isinstance(real, int)
            assert real not in [c.handle for c in self.past], "a handle is given once"
            model.handle = real
            assert pool.chain(real).owner == pool.kernel.owner
            self.past.append(model)
            self.text_of[model] = text
        else:
            assert real == model
        self.agree_on_evicted(evicted)

    @precondition(lambda self: self.past)
    @rule(data=st.data(), longer=st.integers(0, 9))
    def extend(self, data: st.DataObject, longer: int) -> None:
        chain, tokens, pool = self.chain(data), self.tokens(data), self.pool(data)
        full = (chain.tokens + tokens) // BLOCK
        hashes = self.hashes(data, self.text_of[chain], chain.sealed, full - chain.sealed + (longer == 9))
        evicted: list[Evicted] = []
        real, model = self.both(
            lambda: pool.extend(chain.handle, tokens, pack(hashes), evicted),
            lambda: self.model.extend(chain, tokens, hashes),
        )
        assert real == model
        self.agree_on_evicted(evicted)

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        chain, pool = self.chain(data), self.pool(data)
        real, model = self.both(lambda: pool.fork(chain.handle, 3), lambda: self.model.fork(chain, 3))
        if isinstance(model, m.Chain):
            assert isinstance(real, int)
            model.handle = real
            self.past.append(model)
            self.text_of[model] = self.text_of[chain]
        else:
            assert real == model

    @precondition(lambda self: self.past)
    @rule(data=st.data(), keep=st.booleans(), score=SCORES)
    def truncate(self, data: st.DataObject, keep: bool, score: float | None) -> None:
        chain, pool = self.chain(data), self.pool(data)
        tokens = data.draw(st.integers(0, chain.tokens + 1))
        real, model = self.both(
            lambda: pool.truncate(chain.handle, tokens, keep=keep, score=score),
            lambda: self.model.truncate(chain, tokens, keep, score),
        )
        assert real == model

    @precondition(lambda self: self.past)
    @rule(data=st.data(), keep=st.booleans(), score=SCORES)
    def release(self, data: st.DataObject, keep: bool, score: float | None) -> None:
        chain, pool = self.chain(data), self.pool(data)
        real, model = self.both(
            lambda: pool.release(chain.handle, score) if keep else pool.drop(chain.handle),
            lambda: self.model.release(chain, keep, score if keep else None),
        )
        assert real == model

    @rule(data=st.data(), n=st.sampled_from((0, 1, 2, 5, 300)))
    def evict(self, data: st.DataObject, n: int) -> None:
        evicted = self.pool(data).evict(n)
        self.model.evict(n)
        self.agree_on_evicted(evicted)

    @rule(data=st.data(), text=st.integers(0, TEXTS - 1), score=st.sampled_from((0.0, 0.5, 3.0, 9.0)))
    def rescore(self, data: st.DataObject, text: int, score: float) -> None:
        hashes = self.hashes(data, text, 0, 6 + self.large * 200)
        assert self.pool(data).rescore(pack(hashes), score) == self.model.rescore(hashes, score)

    @rule(data=st.data(), text=st.integers(0, TEXTS - 1))
    def resident(self, data: st.DataObject, text: int) -> None:
        hashes = self.hashes(data, text, 0, 6 + self.large * 200)
        assert self.pool(data).resident(pack(hashes)) == len(self.model.survey(None, hashes))

    @rule(agent=st.integers(0, 2), of_tenant=st.booleans(), blocks=st.sampled_from((None, None, 1, 3, 5)))
    def quota(self, agent: int, of_tenant: bool, blocks: int | None) -> None:
        key = ("tenant", TENANT_OF[agent]) if of_tenant else ("agent", agent)
        if of_tenant:
            self.pools[0].quota(blocks, tenant=f"tenant {TENANT_OF[agent]}")
        else:
            self.pools[0].quota(blocks, agent=self.accounts[agent])
        self.model.quotas.pop(key, None)
        if blocks is not None:
            self.model.quotas[key] = blocks

    # --- what must hold after each of them ---

    @invariant()
    def same_state(self) -> None:
        pool = self.pools[-1]
        pool.check()
        s, used = pool.statistics(), self.model.used()
        assert (s.used, s.cached, s.reserved, s.chains) == (
            len(used),
            len(self.model.cached),
            0,
            len(self.model.chains),
        )
        assert (s.queries, s.hits) == (self.model.queries, self.model.hits)
        assert (s.taken, s.evicted) == (self.model.taken, self.model.evictions)
        for i, account in enumerate(self.accounts):
            assert pool.charged(agent=account) == self.model.charged(i)
        for tenant in (0, 1):
            assert pool.charged(tenant=f"tenant {tenant}") == self.model.charged_tenant(tenant)
        for c in self.model.chains:
            x = pool.chain(c.handle)
            assert pool.blocks(c.handle) == [b.id for b in c.blocks]
            assert (x.program, x.tokens, x.sealed, x.matched) == (c.program, c.tokens, c.sealed, c.matched)
            assert x.copy == ((c.held.id, c.blocks[c.copy_at].id) if c.held else None)


# Of two equal hashes in one call, which one's block is the shadow depends on how a long call is cut: "any" on short ones.
KINDS_OF_HASHES = [("small", "honest"), ("small", "any"), ("middling", "honest"), ("middling", "any"), ("long", "honest")]


@pytest.mark.parametrize("participants", [0, 1, 2], ids=["private", "shared", "shared by two"])
@pytest.mark.parametrize(("size", "hashes"), KINDS_OF_HASHES)
def test_pool_and_model_answer_alike(size: str, hashes: str, participants: int) -> None:
    machine = type("Agreement", (Agreement,), {"size_name": size, "honest": hashes == "honest", "participants": participants})
    print(f"seed {SEED}: AGENTRM_MODEL_SEED={SEED} repeats it")
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    large = size == "long"
    options = settings(max_examples=max(1, EXAMPLES // 5) if large else EXAMPLES, stateful_step_count=25 if large else 50,
                       deadline=None, database=None, print_blob=True, suppress_health_check=checks)  # fmt: skip
    run_state_machine_as_test(seed(SEED)(machine), settings=options)
