/* Block pools in the arena (see arm_kv.h); shared by the files of the block accounting only. */
#ifndef ARM_KV_INTERNAL_H
#define ARM_KV_INTERNAL_H
#include "arm_internal.h"
#include "arm_kv.h"

/* Blocks are named by their index in the arena plus one in links, by their index in the pool at the border. */
#define LOW24(v) ((uint32_t)((v) & 0xffffff))
#define HIGH24(v) ((uint32_t)((v) >> 24 & 0xffffff))
#define PAIR24(high, low) ((int64_t)(high) << 24 | (int64_t)(low))

#define BLOCK_FREE 0
#define BLOCK_OPEN 1
#define BLOCK_SEALED 2
#define BLOCK_CACHED 3
#define BLOCK_SHADOW 4 /* flag of the last two: not in the table of hashes */
#define STATE(mark) ((uint32_t)(mark) & 3)
#define LINK(mark) ((uint32_t)((mark) >> 8 & 0xffffff)) /* next free block; place in the order, plus one, or 0 */

/* What a block in use is charged to; 0 is nobody. */
#define TO_AGENT(i) (INT64_C(1) << 24 | (int64_t)(i))
#define TO_TENANT(i) (INT64_C(2) << 24 | (int64_t)(i))

#define CHAIN_FREE 0
#define CHAIN_OPEN 1
#define CHAIN_CLOSING 2

#define KV_CHUNK 64 /* cached or sealed blocks that one transaction of a shared arena takes on */

static inline arm_block *block(arm_ctx *c, uint32_t b) { return c->blocks + b - 1; }
static inline arm_kv_pool *kv_pool(arm_ctx *c, uint32_t p) { return c->kv_pools + p; }
static inline arm_chain *chain_at(arm_ctx *c, uint32_t i) { return c->chains + i; }
static inline uint32_t who_pool(int64_t w) { return (uint32_t)(w >> 24 & 0xfff); }
static inline uint32_t parent_of(arm_ctx *c, uint32_t b) { return HIGH24(rdw(c, &block(c, b)->place)); }
static inline bool in_use(arm_ctx *c, uint32_t b) { return HIGH24(rdw(c, &block(c, b)->refs)) > 0; }
static inline void add(arm_ctx *c, cell *p, int64_t n) { wrw(c, p, rdw(c, p) + n); }
static inline void add_refs(arm_ctx *c, uint32_t b, int64_t pins, int64_t kids) {
    add(c, &block(c, b)->refs, pins * (INT64_C(1) << 24) + kids);
}
static inline bool log_has_room(arm_ctx *c) { return ARM_DIRECT(c) || c->nwrites < ARM_MAX_WRITES / 2; }
static inline uint64_t hash_in(const char *hashes, int64_t i) {
    uint64_t h;
    memcpy(&h, hashes + i * 8, 8);
    return h;
}

/* --- order of eviction (arm_kv_order.c): a heap of the cached blocks on which nothing cached is built --- */
ARM_LOCAL void order_add(arm_ctx *c, arm_kv_pool *p, uint32_t b);
ARM_LOCAL void order_remove(arm_ctx *c, arm_kv_pool *p, uint32_t b);
ARM_LOCAL void order_moved(arm_ctx *c, arm_kv_pool *p, uint32_t b);
ARM_LOCAL void order_replace_first(arm_ctx *c, arm_kv_pool *p, uint32_t by);
ARM_LOCAL uint32_t order_first(arm_ctx *c, arm_kv_pool *p);

/* --- blocks (arm_kv_block.c) --- */
ARM_LOCAL uint64_t block_hash(arm_ctx *c, uint32_t b);
ARM_LOCAL uint32_t block_find(arm_ctx *c, arm_kv_pool *p, uint64_t hash); /* + 1, 0: none */
ARM_LOCAL void block_seal(arm_ctx *c, arm_kv_pool *p, uint32_t b, uint64_t hash);
ARM_LOCAL uint32_t block_evict(arm_ctx *c, arm_kv_pool *p, arm_kv_taken *taken);
ARM_LOCAL uint32_t block_take(arm_ctx *c, arm_kv_pool *p, uint32_t parent, int64_t charge, arm_kv_taken *taken);
ARM_LOCAL void block_free(arm_ctx *c, arm_kv_pool *p, uint32_t b, int64_t mark);
ARM_LOCAL void block_to_free_list(arm_ctx *c, arm_kv_pool *p, uint32_t b);

/* --- charges (arm_kv_charge.c) --- */
ARM_LOCAL cell *charge_cell(arm_ctx *c, arm_kv_pool *p, bool tenant, uint32_t index);
ARM_LOCAL void charge(arm_ctx *c, arm_kv_pool *p, int64_t to, int64_t n);
ARM_LOCAL int64_t charge_room(arm_ctx *c, arm_kv_pool *p, uint32_t agent_index, int *which);
ARM_LOCAL bool charge_join(arm_ctx *c, arm_kv_pool *p, uint32_t b, uint32_t agent_index);

/* --- chains (arm_kv_chain.c, arm_kv_leave.c) --- */
/* An operation that makes a chain longer, over as many transactions as it takes. What a transaction that is run again
 * must find as it was has a twin that moves on with the commit. */
typedef struct {
    const char *hashes;
    int64_t n_hashes, base; /* base: position in the chain of the first hash's block */
    arm_kv_taken *taken;
    bool matching, match_only, again;
    bool left; /* more transactions to come */
    int64_t matched, matched_before;
    uint32_t joining, joining_before; /* block from which on charges are to be joined */
    int32_t taken_before;
} arm_growing;

static inline void growing_starts(arm_growing *o) {
    o->matched = o->matched_before;
    o->joining = o->joining_before;
    if (o->taken) o->taken->n = o->taken_before;
}
static inline void growing_committed(arm_growing *o) {
    o->matched_before = o->matched;
    o->joining_before = o->joining;
    if (o->taken) o->taken_before = o->taken->n;
}
ARM_LOCAL arm_chain *live_chain(arm_ctx *c, int64_t handle);
ARM_LOCAL int64_t kv_survey(arm_ctx *c, arm_kv_pool *p, uint32_t tail, const char *hashes, int64_t n, uint32_t *last);
ARM_LOCAL void kv_let_go(arm_ctx *c, int64_t handle);

static inline int64_t lacks(int code, int64_t lacking) { return code - lacking * 256; }
#endif
