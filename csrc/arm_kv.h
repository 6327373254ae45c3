/* KV blocks: who holds which blocks of an engine's KV cache, what is cached, and what goes first when room is short.
 *
 * THEORY OF OPERATION
 *
 * An arena (arm.h) may carry block pools, one a backend: `blocks` blocks of `block_tokens` tokens. The blocks' contents
 * are the engine's; here are their counts. Everything is a transaction over the arena like a ticket's moves, so
 * several processes may share it, and a private arena writes at once.
 *
 * A CHAIN is what one program has in a pool: blocks in order, the last one perhaps partly filled. A full block may be
 * SEALED with the 64-bit hash of its content and of all before it. The same hash is the same prefix, so chains meet in
 * a tree: a block knows its parent, a chain knows its last block alone. Fork is O(1), and what is shared exists once.
 *
 *     FREE -> OPEN         extend takes a block
 *     OPEN -> SEALED       its hash becomes known
 *     SEALED -> CACHED     the last chain through it was released: whoever comes with its hash may have it
 *     CACHED -> SEALED     match
 *     CACHED -> FREE       evicted: lowest score first, but never before what was built on it
 *     OPEN, SEALED -> FREE released without a hash, or dropped
 *
 * A block whose content another sealed block has already is a SHADOW: in use as usual, found by nobody, not cached.
 *
 * SCORE. Whoever releases a chain says what its blocks are worth (predicted next use times recompute cost, say), or
 * leaves it (negative): then the pool's own count of releases, which is LRU. When a block goes, its parent is worth at
 * least as much as it was.
 *
 * CHARGES. A block in use is charged to the agent who brought it into use; from the moment that a second agent of the
 * tenant uses it, to the tenant alone; from the moment that a second tenant does, to nobody. Cached blocks are charged to
 * nobody. An agent's charges count to its tenant. A quota bounds what is charged; matching stops at it, extending is
 * refused.
 *
 * ALL OR NOTHING. An operation first makes sure of all that it needs. What fits into one transaction happens in one; a
 * larger one (shared arenas only) reserves what it needs with its first, so that nothing can be lacking later. Its chain
 * is then seen to grow; if its participant dies, its burial gives all of it back.
 */
#ifndef ARM_KV_H
#define ARM_KV_H
#include "arm.h"

/* cdef: */
#define ARM_E_BLOCKS -10       /* the pool has not as many blocks that are free or cached */
#define ARM_E_QUOTA_AGENT -11
#define ARM_E_QUOTA_TENANT -12

#define ARM_KV_RELEASE 0
#define ARM_KV_DROP 1

typedef struct arm_kv_config {
    uint32_t blocks, block_tokens;
} arm_kv_config;

/* What an operation took and from whom: the blocks in order, and the hash of the content that each had if it was
 * evicted for it (`had` 1), so that an engine can save that before it writes. */
typedef struct arm_kv_taken {
    int32_t room, n; /* n counts on beyond the room */
    int32_t *block;
    uint64_t *hash;
    uint8_t *had;
} arm_kv_taken;

typedef struct arm_kv_chain_info {
    int64_t handle, program, tokens;
    int32_t pool, agent, owner;
    int32_t blocks, sealed; /* sealed: leading blocks with a hash */
    int32_t matched;        /* leading blocks that were resident when it was opened */
    int32_t copy_from, copy_to; /* the last extend wrote into a copy: block to copy from (kept until the chain's next
                                 * operation) and to; -1: none */
} arm_kv_chain_info;

typedef struct arm_kv_info {
    int64_t queries, hits, taken, evicted; /* blocks looked for by hash and found, taken from free or cached, evicted */
    int32_t blocks, block_tokens, used, cached, free, reserved, candidates, chains;
} arm_kv_info;

int arm_set_kv(void *memory, uint32_t pool, const arm_kv_config *config);

/* who: agent as arm_agent returned it | pool << 24. Opens a chain; `hashes` are those of its leading full blocks. With
 * tokens 0 it is as long as what is resident of them; else it has room for `tokens`, of which the leading resident
 * blocks are shared and the others taken and sealed. Returns its handle. */
int64_t arm_kv_open(arm_ctx *ctx, int64_t who, int64_t program, int64_t tokens, const char *hashes, int64_t n_hashes,
                    arm_kv_taken *taken);
/* Room for `tokens` more; `hashes` are those of the next full blocks that have none yet, some of which may be full only
 * now. Blocks of it that are resident are shared instead of taken, if the chain ends with a sealed block. Returns how
 * many were. A partly filled last block that others see is replaced by a copy (arm_kv_chain_info). */
int64_t arm_kv_extend(arm_ctx *ctx, int64_t chain, int64_t tokens, const char *hashes, int64_t n_hashes,
                      arm_kv_taken *taken);
/* The shortest way, for chains without hashes, bound: open with room for `tokens`, blocks into `taken`; release as the
 * least recently used. */
typedef struct arm_kv_tap {
    arm_ctx *ctx;
    int64_t who;
    arm_kv_taken taken;
} arm_kv_tap;
int64_t arm_kv_take(arm_kv_tap *tap, int64_t tokens);
int64_t arm_kv_give(arm_ctx *ctx, int64_t chain);
int64_t arm_kv_fork(arm_ctx *ctx, int64_t chain, int64_t program);
/* Shortens a chain to `tokens`; what it leaves is kept or not as by arm_kv_release. */
int64_t arm_kv_truncate(arm_ctx *ctx, int64_t chain, int64_t tokens, int64_t how, double score);
/* Ends a chain. ARM_KV_RELEASE caches what is sealed, ARM_KV_DROP keeps nothing but what others' cached blocks build on.
 * score: NaN is refused, negative is LRU. Returns how many of its blocks are not in use any more. */
int64_t arm_kv_release(arm_ctx *ctx, int64_t chain, int64_t how, double score);

int64_t arm_kv_evict(arm_ctx *ctx, int64_t pool, int64_t n, arm_kv_taken *taken); /* returns how many */
int64_t arm_kv_resident(arm_ctx *ctx, int64_t pool, const char *hashes, int64_t n_hashes); /* leading ones */
int64_t arm_kv_rescore(arm_ctx *ctx, int64_t pool, const char *hashes, int64_t n_hashes, double score);

/* Quota in blocks of an agent (tenant 0) or tenant (1) in a pool, 0: none; what it has already is left to it. */
int arm_kv_quota(arm_ctx *ctx, int64_t pool, int64_t tenant, int64_t index, int64_t blocks);
int arm_kv_charge(arm_ctx *ctx, int64_t pool, int64_t tenant, int64_t index, int64_t *charged, int64_t *quota);

int64_t arm_kv_blocks(arm_ctx *ctx, int64_t chain, int64_t from, int32_t *out, int64_t room); /* returns the length */
int arm_kv_chain_at(arm_ctx *ctx, int64_t index, arm_kv_chain_info *out); /* state in the handle: 0 none */
int64_t arm_kv_chain_count(arm_ctx *ctx);                                /* places ever used */
int arm_kv_at(arm_ctx *ctx, int32_t pool, arm_kv_info *out);
int arm_kv_check(arm_ctx *ctx, char *why, size_t room); /* 0: all invariants hold */
/* end of cdef */
#endif
