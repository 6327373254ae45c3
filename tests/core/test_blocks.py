"""KV blocks: sharing, caching, quotas, copies on write, and what is refused. `model_blocks.py` says it all at once."""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrm.core import BlockPool, BlockTap, Kernel, KernelConfig, KVPool, block_hashes
from agentrm.core.blocks import _Account
from agentrm.errors import BlockQuotaExceeded, BlocksExhausted, ForkedError, KernelError

BLOCK = 4


def pool_of(blocks: int, **more: int) -> BlockPool:
    return BlockPool.alone(blocks, BLOCK, **more)


def words(n: int, first: int = 0) -> bytes:
    """Hashes of n full blocks of a text that begins with token `first`."""
    return block_hashes(range(first, first + n * BLOCK), BLOCK)


def counts(pool: BlockPool) -> tuple[int, int, int]:
    pool.check()
    s = pool.statistics()
    assert s.used + s.cached + s.free == s.capacity
    return s.used, s.cached, s.free


def test_a_chain_has_as_many_blocks_as_its_tokens_need() -> None:
    pool = pool_of(8)
    chain = pool.open(pool.account(), 9)
    assert pool.blocks(chain) == [0, 1, 2]
    pool.extend(chain, 3)
    assert pool.chain(chain).blocks == 3, "the last block had room for three more"
    pool.extend(chain, 1)
    assert pool.blocks(chain) == [0, 1, 2, 3]
    assert counts(pool) == (4, 0, 4)


def test_a_shared_system_prompt_counts_once() -> None:
    pool = pool_of(16)
    account = pool.account()
    chains = [pool.open(account, 3 * BLOCK + 1, words(3)) for _ in range(4)]
    assert {tuple(pool.blocks(c)[:3]) for c in chains} == {(0, 1, 2)}
    assert [pool.chain(c).matched for c in chains] == [0, 3, 3, 3]
    assert counts(pool) == (3 + 4, 0, 9)
    for c in chains[:3]:
        assert pool.release(c) == 1, "its own block; the prompt is in use by another"
    assert pool.release(chains[3]) == 4
    assert counts(pool) == (0, 3, 13)


def test_a_released_chain_is_found_again_by_its_hashes() -> None:
    pool = pool_of(8)
    pool.release(pool.open(pool.account(), 4 * BLOCK, words(4)))
    assert pool.resident(words(6)) == 4
    again = pool.open(pool.account(), 0, words(6))
    assert (pool.chain(again).matched, pool.chain(again).tokens) == (4, 4 * BLOCK)
    assert counts(pool) == (4, 0, 4)
    pool.drop(again)
    assert counts(pool) == (0, 0, 8)
    assert pool.resident(words(4)) == 0


def test_cached_blocks_go_when_room_is_needed_the_lowest_score_first_and_from_the_end() -> None:
    pool = pool_of(8)
    account = pool.account()
    dear, cheap = pool.open(account, 4 * BLOCK, words(4)), pool.open(account, 4 * BLOCK, words(4, 100))
    was = pool.blocks(cheap)
    pool.release(dear, 2.5)
    pool.release(cheap, 1.5)
    evicted = []
    chain = pool.open(account, 3 * BLOCK, evicted=evicted)
    assert [e.block for e in evicted] == was[:0:-1] == pool.blocks(chain)
    assert [e.hash for e in evicted] == [words(4, 100)[i : i + 8] for i in (24, 16, 8)]
    assert (pool.resident(words(4)), pool.resident(words(4, 100))) == (4, 1)
    assert counts(pool) == (3, 5, 0)


def test_without_scores_the_least_recently_released_goes_first() -> None:
    pool = pool_of(4)
    account = pool.account()
    first, second = pool.open(account, 2 * BLOCK, words(2)), pool.open(account, 2 * BLOCK, words(2, 100))
    pool.release(second)
    pool.release(first)
    pool.open(account, 2 * BLOCK)
    assert (pool.resident(words(2)), pool.resident(words(2, 100))) == (2, 0)


def test_a_prefix_is_worth_as_much_as_what_was_built_on_it() -> None:
    pool = pool_of(8)
    account = pool.account()
    long, short = pool.open(account, 2 * BLOCK, words(2)), pool.open(account, BLOCK, words(1))
    pool.release(long, 7.0)
    pool.release(short, 1.5)
    assert [e.hash for e in pool.evict(1)] == [words(2)[8:]]
    pool.release(pool.open(account, BLOCK, words(1, 100)), 3.0)
    assert [e.hash for e in pool.evict(2)] == [words(1, 100), words(1)]


def test_a_cached_chain_can_get_another_score() -> None:
    pool = pool_of(4)
    account = pool.account()
    a, b = pool.open(account, 2 * BLOCK, words(2)), pool.open(account, 2 * BLOCK, words(2, 100))
    pool.release(a, 1.0)
    pool.release(b, 2.0)
    assert pool.rescore(words(3), 3.0) == 2
    assert [e.hash for e in pool.evict(2)] == [words(2, 100)[8:], words(2, 100)[:8]]


def test_what_is_lacking_is_named_and_nothing_is_taken() -> None:
    pool = pool_of(4)
    account = pool.account()
    chain = pool.open(account, 3 * BLOCK, words(3))
    with pytest.raises(BlocksExhausted, match="lacks 2") as refused:
        pool.extend(chain, 3 * BLOCK)
    assert refused.value.lacking == 2
    with pytest.raises(BlocksExhausted) as refused:
        pool.open(account, 5 * BLOCK, words(3))
    assert refused.value.lacking == 1, "three of the five are shared"
    assert pool.chain(chain).tokens == 3 * BLOCK
    assert counts(pool) == (3, 0, 1)


def test_quotas_bound_agents_and_tenants() -> None:
    pool = pool_of(32)
    alice, bob = pool.account("alice", "research"), pool.account("bob", "research")
    pool.quota(4, agent=alice)
    pool.quota(6, tenant="research")
    chain = pool.open(alice, 3 * BLOCK)
    with pytest.raises(BlockQuotaExceeded, match="quota of the agent lacks 1") as refused:
        pool.extend(chain, 2 * BLOCK)
    assert (refused.value.of, refused.value.lacking) == ("agent", 1)
    with pytest.raises(BlockQuotaExceeded, match="quota of the tenant") as refused:
        pool.open(bob, 5 * BLOCK)
    assert (refused.value.of, refused.value.lacking, refused.value.agent) == ("tenant", 2, "bob")
    pool.quota(None, tenant="research")
    pool.open(bob, 5 * BLOCK)
    assert (pool.charged(agent=alice), pool.charged(agent=bob), pool.charged(tenant="research")) == (3, 5, 8)


def test_matching_stops_at_the_quota() -> None:
    pool = pool_of(8)
    pool.release(pool.open(pool.account(), 4 * BLOCK, words(4)))
    poor = pool.account("poor")
    pool.quota(2, agent=poor)
    assert pool.chain(pool.open(poor, 0, words(4))).matched == 2
    assert counts(pool) == (2, 2, 4)


def test_shared_blocks_are_charged_to_the_tenant_and_then_to_nobody() -> None:
    pool = pool_of(8)
    alice, bob, eve = pool.account("alice", "a"), pool.account("bob", "a"), pool.account("eve", "e")

    def charges() -> tuple[int, ...]:
        pool.check()
        agents = [pool.charged(agent=x) for x in (alice, bob, eve)]
        return *agents, pool.charged(tenant="a"), pool.charged(tenant="e")

    first = pool.open(alice, 2 * BLOCK, words(2))
    assert charges() == (2, 0, 0, 2, 0)
    second = pool.open(bob, 3 * BLOCK, words(3))
    assert charges() == (0, 1, 0, 3, 0)
    third = pool.open(eve, 2 * BLOCK, words(1))
    assert charges() == (0, 1, 1, 2, 1)
    for c in (first, second, third):
        pool.release(c)
    assert charges() == (0, 0, 0, 0, 0), "what is cached is charged to nobody"


def test_the_first_to_write_into_a_shared_last_block_gets_a_copy() -> None:
    pool = pool_of(8)
    chain = pool.open(pool.account(), 6)
    fork = pool.fork(chain, program=7)
    assert pool.blocks(fork) == pool.blocks(chain) == [0, 1]
    pool.extend(fork, 1)
    assert pool.chain(fork).copy == (1, 2)
    assert (pool.blocks(chain), pool.blocks(fork)) == ([0, 1], [0, 2])
    pool.extend(chain, 1)
    assert pool.chain(chain).copy == (1, 3), "the source of the copy stays as it is until the fork's next call"
    pool.extend(fork, 1)
    assert pool.chain(fork).copy is None
    assert counts(pool) == (4, 0, 4), "block 1 is still the source of the other copy"
    pool.extend(chain, 0)
    assert counts(pool) == (3, 0, 5)


def test_writing_behind_a_truncation_spares_the_cached_content() -> None:
    pool = pool_of(8)
    chain = pool.open(pool.account(), 3 * BLOCK, words(3))
    assert pool.truncate(chain, BLOCK + 1) == 1
    assert pool.resident(words(3)) == 3, "the last block is cached"
    pool.extend(chain, 2)
    assert pool.chain(chain).copy == (1, 3)
    pool.release(chain)
    assert pool.resident(words(3)) == 3


def test_a_second_block_with_the_same_content_is_not_cached() -> None:
    pool = pool_of(8)
    account = pool.account()
    a, b = pool.open(account, 2 * BLOCK), pool.open(account, 2 * BLOCK)
    for c in (a, b):
        pool.seal(c, words(2))
    assert counts(pool) == (4, 0, 4)
    pool.release(a)
    pool.release(b)
    assert counts(pool) == (0, 2, 6)


def test_what_was_built_on_a_second_block_with_the_same_content_is_found() -> None:
    pool = pool_of(8)
    account = pool.account()
    a, b = pool.open(account, BLOCK), pool.open(account, BLOCK)
    pool.seal(a, words(1))
    pool.seal(b, words(1))
    pool.extend(b, BLOCK, words(2)[8:])
    pool.release(a)
    found = pool.open(account, 0, words(2))
    assert pool.blocks(found) == pool.blocks(b) == [1, 2]
    assert counts(pool) == (2, 1, 5)


def test_a_hash_given_to_blocks_at_two_depths_misleads_nobody() -> None:
    pool = pool_of(8)
    account = pool.account()
    one, two, three = (i.to_bytes(8, "little") for i in (1, 2, 3))
    pool.open(account, BLOCK, one)
    chain = pool.open(account, 3 * BLOCK, two + one + three)
    assert pool.chain(chain).matched == 0
    assert pool.resident(one + three) == 1, "the third stands on a block with that hash, but not on a first one"
    assert counts(pool) == (4, 0, 4)


def test_hashes_of_other_tenants_differ() -> None:
    text = range(40)
    assert block_hashes(text, BLOCK, salt=b"a") != block_hashes(text, BLOCK, salt=b"b")
    head = block_hashes(text, BLOCK)
    assert block_hashes(range(20, 40), BLOCK, parent=head[4 * 8 : 5 * 8]) == head[5 * 8 :]


def test_ended_chains_and_wrong_arguments_change_nothing() -> None:
    pool = pool_of(4)
    chain = pool.open(pool.account(), BLOCK)
    pool.release(chain)
    for late in (pool.release, pool.drop, pool.blocks, pool.chain, pool.fork, lambda c: pool.extend(c, 1)):
        with pytest.raises(KernelError, match="ended"):
            late(chain)
    with pytest.raises(KernelError, match="range"):
        pool.open(pool.account(), BLOCK, words(2))
    chain = pool.open(pool.account(), BLOCK)
    for wrong in (lambda: pool.truncate(chain, 5), lambda: pool.release(chain, float("nan"))):
        with pytest.raises(KernelError, match="range"):
            wrong()
    assert counts(pool) == (1, 0, 3)


@pytest.mark.parametrize("huge", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_numbers_beyond_64_bits_are_refused_with_the_limit_and_change_nothing(huge: int) -> None:
    pool = pool_of(4)
    account = pool.account()
    chain = pool.open(account, BLOCK)
    for wrong in (
        lambda: pool.open(account, huge), lambda: pool.open(huge, 1), lambda: pool.open(account, 1, program=huge),
        lambda: pool.open(account, huge, evicted=[]), lambda: pool.extend(chain, huge), lambda: pool.extend(huge, 1),
        lambda: pool.extend(chain, huge, evicted=[]), lambda: pool.fork(huge), lambda: pool.fork(chain, huge),
        lambda: pool.truncate(chain, huge), lambda: pool.release(huge), lambda: pool.release(huge, 1.0),
        lambda: pool.drop(huge), lambda: pool.evict(huge), lambda: pool.blocks(huge), lambda: pool.blocks(chain, huge),
        lambda: pool.charged(agent=huge), lambda: pool.quota(1, agent=huge),
    ):  # fmt: skip
        with pytest.raises(KernelError, match=str((1 << 63) - 1)):
            wrong()
    with pytest.raises(KernelError):
        pool.chain(huge)
    assert counts(pool) == (1, 0, 3)


def test_several_backends_in_one_arena_do_not_mix() -> None:
    kernel = Kernel(KernelConfig(kv=(KVPool(4, BLOCK), KVPool(6, 2 * BLOCK))))
    small, large = BlockPool(kernel, 0), BlockPool(kernel, 1)
    account = small.account()
    small.open(account, 4 * BLOCK, words(4))
    assert large.resident(words(4)) == 0
    assert large.blocks(large.open(account, 4 * BLOCK, words(2))) == [0, 1]
    assert (counts(small), counts(large)) == ((4, 0, 0), (2, 0, 4))
    assert len(list(small.chains())) == len(list(large.chains())) == 1


def test_a_tap_takes_and_gives_in_one_call_each() -> None:
    pool = pool_of(8)
    tap = BlockTap(pool, pool.account(), 8)
    chain = tap.take(3 * BLOCK)
    assert [tap.block[i] for i in range(tap.n)] == pool.blocks(chain) == [0, 1, 2]
    assert tap.take(6 * BLOCK) < 0
    assert tap.give(chain) == 3
    assert counts(pool) == (0, 0, 8)


def test_an_agent_with_blocks_keeps_its_place_in_the_table_of_names() -> None:
    pool = pool_of(16, agents=2)
    holder = pool.account("holder")
    chain = pool.open(holder, BLOCK)
    idle = pool.account("idle")
    others = [pool.account(f"agent {i}") for i in range(3)]
    assert len({x & 0xFFFFFF for x in others}) == 1, "they take each other's place, never the holder's"
    assert pool.charged(agent=holder) == 1
    pool.open(idle, BLOCK)
    pool.release(chain)
    assert counts(pool) == (1, 0, 15)


CHILD = """
import mmap, sys
from agentrm.core import BlockPool, Kernel
f = open(sys.argv[1], "r+b")
pool = BlockPool(Kernel(None, mmap.mmap(f.fileno(), 0), attach=True))
shared = pool.open(pool.account("alice"), 0, bytes.fromhex(sys.argv[2]))
own = pool.open(pool.account("bob"), 20)
print(pool.kernel.owner, pool.blocks(shared), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_what_a_killed_process_used_comes_back_and_what_it_shared_stays(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.write_bytes(b"\0" * (1 << 21))
    config = KernelConfig(kv=(KVPool(16, BLOCK),), shared=True, tickets=8, agents=8, tenants=4, scopes=4, owners=4)
    with path.open("r+b") as f:
        pool = BlockPool(Kernel(config, mmap.mmap(f.fileno(), 0)))
    mine = pool.open(pool.account("alice"), 3 * BLOCK, words(3))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), words(3).hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout and child.stdin
    slot, blocks = child.stdout.readline().decode().split(maxsplit=1)
    assert blocks.strip() == str(pool.blocks(mine)), "the same blocks, seen from another process"
    assert counts(pool) == (8, 0, 8)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    pool.kernel.owner_dead(int(slot), child.pid, 1)
    assert counts(pool) == (3, 0, 13)
    assert [c.handle for c in pool.chains()] == [mine]


def test_a_pool_made_before_fork_refuses_in_the_child() -> None:
    pool = pool_of(4)

    def refuse(*_: object) -> None:
        raise ForkedError("made before fork")

    pool.poison(refuse)
    with pytest.raises(ForkedError):
        pool.open(0, 1)


def test_a_million_blocks_take_less_than_64_mb() -> None:
    assert len(BlockPool.alone(1_000_000, 16).kernel._memory) < 64_000_000


def test_names_of_agents_that_nobody_holds_any_more_are_kept_nowhere() -> None:
    pool = BlockPool.alone(4, BLOCK, agents=16)
    held = pool.account("held", "research")
    for i in range(500):
        pool.release(pool.open(pool.account(f"agent {i}"), BLOCK))
    gc.collect()
    assert [one.agent for one in gc.get_objects() if isinstance(one, _Account)] == ["held"]
    pool.release(pool.open(held, BLOCK))  # its place was given away meanwhile, and is taken anew
    assert pickle.loads(pickle.dumps(held)) == held and pickle.loads(pickle.dumps(held)).tenant == "research"


@pytest.mark.parametrize("numbers", [(-1, 16), (16, -1), (2**31, 16), (10**30, 1)])
def test_a_pool_of_numbers_that_cannot_be_is_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(KernelError, match="it must be from 1"):
        BlockPool.alone(*numbers)


def test_to_evict_less_than_nothing_is_refused() -> None:
    with pytest.raises(KernelError):
        BlockPool.alone(4, BLOCK).evict(-1)
