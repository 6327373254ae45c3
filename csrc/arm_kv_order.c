/* In which order cached blocks go: a binary heap by score, then by block, of those that nothing cached is built on.
 * A block knows its place in the heap. */
#include "arm_kv_internal.h"

static inline cell *heap(arm_ctx *c, arm_kv_pool *p) { return c->kv_heap + p->first; }
static inline uint32_t at(arm_ctx *c, arm_kv_pool *p, uint32_t i) { return rd(c, &heap(c, p)[i]); }

static inline void put(arm_ctx *c, arm_kv_pool *p, uint32_t i, uint32_t b) {
    int64_t mark = rdw(c, &block(c, b)->mark);
    wr(c, &heap(c, p)[i], b);
    wrw(c, &block(c, b)->mark, (mark & ~(INT64_C(0xffffff) << 8)) | (int64_t)(i + 1) << 8);
}

static inline void out_of_order(arm_ctx *c, uint32_t b) {
    wrw(c, &block(c, b)->mark, rdw(c, &block(c, b)->mark) & ~(INT64_C(0xffffff) << 8));
}

static inline bool before(arm_ctx *c, uint32_t x, int64_t score, uint32_t y) {
    int64_t other = rdw(c, &block(c, y)->value);
    return score < other || (score == other && x < y);
}

static bool rise(arm_ctx *c, arm_kv_pool *p, uint32_t i, uint32_t b) {
    int64_t score = rdw(c, &block(c, b)->value);
    uint32_t from = i;
    while (i && before(c, b, score, at(c, p, (i - 1) / 2))) {
        put(c, p, i, at(c, p, (i - 1) / 2));
        i = (i - 1) / 2;
    }
    put(c, p, i, b);
    return i != from;
}

static void sink(arm_ctx *c, arm_kv_pool *p, uint32_t i, uint32_t b) {
    int64_t score = rdw(c, &block(c, b)->value);
    uint32_t n = rd(c, &p->heap_n);
    for (;;) {
        uint32_t k = 2 * i + 1;
        if (k >= n) break;
        uint32_t kid = at(c, p, k);
        if (k + 1 < n && before(c, at(c, p, k + 1), rdw(c, &block(c, at(c, p, k + 1))->value), kid)) kid = at(c, p, ++k);
        if (before(c, b, score, kid)) break;
        put(c, p, i, kid);
        i = k;
    }
    put(c, p, i, b);
}

void order_add(arm_ctx *c, arm_kv_pool *p, uint32_t b) {
    uint32_t n = rd(c, &p->heap_n);
    wr(c, &p->heap_n, n + 1);
    rise(c, p, n, b);
}

void order_moved(arm_ctx *c, arm_kv_pool *p, uint32_t b) {
    uint32_t i = LINK(rdw(c, &block(c, b)->mark)) - 1;
    if (!rise(c, p, i, b)) sink(c, p, i, b);
}

void order_remove(arm_ctx *c, arm_kv_pool *p, uint32_t b) {
    uint32_t i = LINK(rdw(c, &block(c, b)->mark)) - 1, n = rd(c, &p->heap_n) - 1, last = at(c, p, n);
    wr(c, &p->heap_n, n);
    out_of_order(c, b);
    if (last != b && !rise(c, p, i, last)) sink(c, p, i, last);
}

/* The first goes and `by`, which is worth at least as much, comes: most often it stays in its place. */
void order_replace_first(arm_ctx *c, arm_kv_pool *p, uint32_t by) {
    out_of_order(c, at(c, p, 0));
    sink(c, p, 0, by);
}

uint32_t order_first(arm_ctx *c, arm_kv_pool *p) { return rd(c, &p->heap_n) ? at(c, p, 0) : 0; }
