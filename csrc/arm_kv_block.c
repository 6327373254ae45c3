/* Blocks: the table of hashes, the free list, taking and evicting. */
#include "arm_kv_internal.h"

static inline cell *bucket(arm_ctx *c, arm_kv_pool *p, uint64_t hash) {
    uint64_t h = (hash ^ (uint64_t)p->index << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return c->kv_buckets + (h >> 32 & c->arena->kv_mask);
}

uint64_t block_hash(arm_ctx *c, uint32_t b) {
    return (uint64_t)rdw(c, &block(c, b)->hash) | (uint64_t)(rdw(c, &block(c, b)->mark) >> 32) << 48;
}

uint32_t block_find(arm_ctx *c, arm_kv_pool *p, uint64_t hash) {
    for (uint32_t b = rd(c, bucket(c, p, hash)); b; b = LOW24(rdw(c, &block(c, b)->place)))
        if (block_hash(c, b) == hash && b - 1 >= p->first && b - 1 < p->first + p->config.blocks) return b;
    return 0;
}

/* An open block gets its hash; if another has it already, it becomes a shadow of that one. */
void block_seal(arm_ctx *c, arm_kv_pool *p, uint32_t b, uint64_t hash) {
    arm_block *k = block(c, b);
    bool shadow = block_find(c, p, hash) != 0;
    wrw(c, &k->hash, (int64_t)hash);
    wrw(c, &k->mark, BLOCK_SEALED | (shadow ? BLOCK_SHADOW : 0) | (int64_t)(hash >> 48) << 32);
    if (shadow) return;
    cell *head = bucket(c, p, hash);
    wrw(c, &k->place, PAIR24(HIGH24(rdw(c, &k->place)), rd(c, head)));
    wr(c, head, b);
}

static void unseal(arm_ctx *c, arm_kv_pool *p, uint32_t b) {
    cell *head = bucket(c, p, block_hash(c, b));
    uint32_t next = LOW24(rdw(c, &block(c, b)->place)), i = rd(c, head);
    if (i == b) {
        wr(c, head, next);
        return;
    }
    while (LOW24(rdw(c, &block(c, i)->place)) != b) i = LOW24(rdw(c, &block(c, i)->place));
    wrw(c, &block(c, i)->place, PAIR24(HIGH24(rdw(c, &block(c, i)->place)), next));
}

void block_to_free_list(arm_ctx *c, arm_kv_pool *p, uint32_t b) {
    wrw(c, &block(c, b)->mark, BLOCK_FREE | (int64_t)rd(c, &p->free_head) << 8);
    wr(c, &p->free_head, b);
}

/* A block that nobody uses and nothing is built on; `mark` is its mark. */
void block_free(arm_ctx *c, arm_kv_pool *p, uint32_t b, int64_t mark) {
    if (STATE(mark) >= BLOCK_SEALED && !(mark & BLOCK_SHADOW)) unseal(c, p, b);
    block_to_free_list(c, p, b);
}

static void report(arm_kv_taken *taken, arm_kv_pool *p, uint32_t b, bool had, uint64_t hash) {
    if (taken->n < taken->room) {
        taken->block[taken->n] = (int32_t)(b - 1 - p->first);
        taken->hash[taken->n] = hash;
        taken->had[taken->n] = had;
    }
    taken->n++;
}

/* The cached block that is worth least goes; it belongs to nobody then. There is one. */
uint32_t block_evict(arm_ctx *c, arm_kv_pool *p, arm_kv_taken *taken) {
    uint32_t b = order_first(c, p), parent = parent_of(c, b);
    int64_t mark = rdw(c, &block(c, b)->mark), score = rdw(c, &block(c, b)->value);
    bool next = false;
    if (taken) report(taken, p, b, true, block_hash(c, b));
    if (!(mark & BLOCK_SHADOW)) unseal(c, p, b);
    if (parent) {
        add_refs(c, parent, 0, -1);
        next = rdw(c, &block(c, parent)->refs) == 0; /* neither pins nor kids: cached, and now at the end */
    }
    if (next) {
        if (rdw(c, &block(c, parent)->value) < score) wrw(c, &block(c, parent)->value, score);
        order_replace_first(c, p, parent);
    } else {
        order_remove(c, p, b);
    }
    add(c, &p->evicted, 1);
    add(c, &p->cached, -1);
    return b;
}

/* A block for a chain whose last one is `parent`: the chain's pin moves on from there, so that one's count stays. */
uint32_t block_take(arm_ctx *c, arm_kv_pool *p, uint32_t parent, int64_t to, arm_kv_taken *taken) {
    uint32_t b = rd(c, &p->free_head);
    if (b) {
        wr(c, &p->free_head, LINK(rdw(c, &block(c, b)->mark)));
    } else if (rd(c, &p->high) < p->config.blocks) {
        b = p->first + rd(c, &p->high) + 1;
        wr(c, &p->high, rd(c, &p->high) + 1);
    }
    if (!b) b = block_evict(c, p, taken);
    else if (taken) report(taken, p, b, false, 0);
    arm_block *k = block(c, b);
    wrw(c, &k->refs, PAIR24(1, 0));
    wrw(c, &k->place, PAIR24(parent, 0));
    wrw(c, &k->mark, BLOCK_OPEN);
    wrw(c, &k->value, to);
    return b;
}
