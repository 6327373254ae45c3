"""KV blocks: a chain of 16 blocks is taken and released, without and with hashes (of content not seen before, so that
cached blocks must go)."""

from __future__ import annotations

from agentrm.core import BlockPool, BlockTap
from benchmarks import sizes
from benchmarks.measure import Round, whole

LENGTH = 16
BLOCK_TOKENS = 16
TOKENS = LENGTH * BLOCK_TOKENS


def plain() -> Round:
    pool = BlockPool.alone(sizes.BLOCKS, BLOCK_TOKENS)
    tap = BlockTap(pool, pool.account(), LENGTH)
    take, give = tap.take, tap.give
    if give(take(TOKENS)) != LENGTH or tap.n != LENGTH:
        raise RuntimeError("the blocks were not taken")

    def work() -> None:
        for _ in range(sizes.CHAINS):
            give(take(TOKENS))

    return lambda: whole(work, sizes.CHAINS)


def plain_list() -> Round:
    """Through the methods that raise, with the blocks as a Python list."""
    pool = BlockPool.alone(sizes.BLOCKS, BLOCK_TOKENS)
    account, opened, release, blocks = pool.account(), pool.open, pool.release, pool.blocks

    def work() -> None:
        for _ in range(sizes.CHAINS):
            chain = opened(account, TOKENS)
            blocks(chain)
            release(chain)

    return lambda: whole(work, sizes.CHAINS)


def texts() -> list[bytes]:
    """Hashes of more chains than the pool can cache: each comes again after it was evicted."""
    n = max(sizes.CHAINS, 2 * sizes.BLOCKS // LENGTH)
    return [b"".join((i << 32 | k).to_bytes(8, "little") for k in range(LENGTH)) for i in range(n)]


def cached() -> Round:
    pool = BlockPool.alone(sizes.BLOCKS, BLOCK_TOKENS)
    account, opened, release, blocks = pool.account(), pool.open, pool.release, pool.blocks
    hashes = texts()

    def work() -> None:
        for h in hashes:
            chain = opened(account, TOKENS, h)
            blocks(chain)
            release(chain)

    work()
    before = pool.statistics()
    work()
    after = pool.statistics()
    if after.hits != before.hits or after.evicted - before.evicted != LENGTH * len(hashes):
        raise RuntimeError("not every block of a chain was evicted for it")
    return lambda: whole(work, len(hashes))


CASES = {"kv-16-blocks": plain, "kv-16-blocks-list": plain_list, "kv-16-blocks-cached": cached}
