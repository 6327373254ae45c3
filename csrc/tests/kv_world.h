/* The block pool of the drivers' arena: workers that open, extend, fork, shorten and end chains, and a ledger that
 * notices a block given to two. Included by world.h. */
#ifndef ARM_TEST_KV_WORLD_H
#define ARM_TEST_KV_WORLD_H
#include "arm_kv.h"

enum { BLOCKS = 160, BLOCK_TOKENS = 4, CHAINS = 64, MINE = 5, TEXTS = 4, QUOTA = 120 };

/* A lower bound of who uses what: counted after a chain has a block, uncounted before it may lose it. */
typedef struct {
    _Atomic int uses[OWNERS][BLOCKS];
    _Atomic long opened, ended;
} kv_ledger;

typedef struct {
    kv_ledger *book;
    int row, n;
    int64_t chain[MINE], tokens[MINE];
    uint32_t text[MINE];
    int32_t counted[MINE][BLOCKS], ncounted[MINE];
} kv_worker;

static inline uint64_t hash_of(uint32_t text, uint32_t at) { /* texts 0 and 1, 2 and 3 begin alike */
    uint64_t z = (uint64_t)(at < 30 ? text / 2 : text + 16) << 32 | at;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ z >> 27;
}

static inline void kv_uncount(kv_worker *v, int i) {
    for (int32_t n = 0; n < v->ncounted[i]; n++) atomic_fetch_sub(&v->book->uses[v->row][v->counted[i][n]], 1);
    v->ncounted[i] = 0;
}

static inline void kv_count(arm_ctx *c, kv_worker *v, int i) {
    int64_t n = arm_kv_blocks(c, v->chain[i], 0, v->counted[i], BLOCKS);
    if (n < 0 || n > BLOCKS) FAIL("blocks of a chain: %lld", (long long)n);
    v->ncounted[i] = (int32_t)n;
    for (int32_t k = 0; k < n; k++) atomic_fetch_add(&v->book->uses[v->row][v->counted[i][k]], 1);
}

/* Blocks just taken that have no hash yet: nobody else can have come by them. */
static inline void kv_all_mine(kv_worker *v, const arm_kv_taken *taken) {
    for (int32_t n = 0; n < taken->n; n++)
        for (int o = 0; o < OWNERS; o++)
            if (atomic_load(&v->book->uses[o][taken->block[n]]) > 0)
                FAIL("block %d is given out while owner %d uses it", taken->block[n], o);
}

static inline bool kv_refused(int64_t rc) {
    int code = rc < 0 ? -(int)(-rc & 255) : 0;
    return code == ARM_E_BLOCKS || code == ARM_E_QUOTA_AGENT || code == ARM_E_QUOTA_TENANT || rc == ARM_E_FULL;
}

static inline void kv_leave(arm_ctx *c, kv_worker *v, int i, int64_t how, double score) {
    kv_uncount(v, i);
    int64_t rc = arm_kv_release(c, v->chain[i], how, score);
    if (rc < 0) FAIL("release of a chain: %lld", (long long)rc);
    if (arm_kv_fork(c, v->chain[i], 0) != ARM_E_STALE) FAIL("a released chain lives");
    atomic_fetch_add(&v->book->ended, 1);
    int last = --v->n;
    if (i == last) return;
    v->chain[i] = v->chain[last];
    v->tokens[i] = v->tokens[last];
    v->text[i] = v->text[last];
    v->ncounted[i] = v->ncounted[last];
    memcpy(v->counted[i], v->counted[last], sizeof v->counted[i]);
}

static inline void kv_added(arm_ctx *c, kv_worker *v, int64_t chain, int64_t tokens, uint32_t text) {
    int i = v->n++;
    v->chain[i] = chain;
    v->tokens[i] = tokens;
    v->text[i] = text;
    v->ncounted[i] = 0;
    atomic_fetch_add(&v->book->opened, 1);
    kv_count(c, v, i);
}

/* One call; r gives its random numbers. */
static inline void kv_step(arm_ctx *c, kv_worker *v, int64_t agent, uint32_t what, uint32_t r, uint32_t s) {
    int32_t block[BLOCKS];
    uint64_t had_hash[BLOCKS], hashes[BLOCKS];
    uint8_t had[BLOCKS];
    arm_kv_taken taken = {.room = BLOCKS, .block = block, .hash = had_hash, .had = had};
    uint32_t text = s % TEXTS, n = r % (s % 8 ? 12 : 110);
    for (uint32_t i = 0; i < BLOCKS; i++) hashes[i] = hash_of(text, i);
    int i = v->n ? (int)(s % (uint32_t)v->n) : 0;
    if (what < 35 && v->n < MINE) {
        bool known = r & 16;
        int64_t tokens = r & 32 ? 0 : (int64_t)n * BLOCK_TOKENS + s % 3;
        int64_t rc = arm_kv_open(c, agent, 1, tokens, (char *)hashes, known || !tokens ? n : 0, &taken);
        if (rc < 0 && !kv_refused(rc)) FAIL("open: %lld", (long long)rc);
        if (rc < 0) return;
        if (!known && tokens) kv_all_mine(v, &taken);
        arm_kv_chain_info info;
        must(arm_kv_chain_at(c, rc & 0xffffff, &info), "look at a chain");
        if (info.handle != rc || info.sealed > info.blocks) FAIL("not the chain that was opened");
        kv_added(c, v, rc, info.tokens, text);
    } else if (what < 60 && v->n) {
        kv_uncount(v, i); /* its last block may be replaced by a copy */
        int64_t rc = arm_kv_extend(c, v->chain[i], n * 3, NULL, 0, &taken);
        if (rc < 0 && !kv_refused(rc)) FAIL("extend: %lld", (long long)rc);
        if (rc >= 0) v->tokens[i] += n * 3, kv_all_mine(v, &taken);
        arm_kv_chain_info info;
        must(arm_kv_chain_at(c, v->chain[i] & 0xffffff, &info), "look at a chain");
        int64_t full = info.tokens / BLOCK_TOKENS - info.sealed;
        for (int64_t k = 0; k < full; k++) hashes[k] = hash_of(v->text[i], (uint32_t)(info.sealed + k));
        if (r & 64) must(arm_kv_extend(c, v->chain[i], 0, (char *)hashes, full, NULL), "seal");
        kv_count(c, v, i);
    } else if (what < 66 && v->n && v->n < MINE) {
        int64_t rc = arm_kv_fork(c, v->chain[i], 2);
        if (rc < 0 && rc != ARM_E_FULL) FAIL("fork: %lld", (long long)rc);
        if (rc >= 0) kv_added(c, v, rc, v->tokens[i], v->text[i]);
    } else if (what < 74 && v->n) {
        kv_uncount(v, i);
        v->tokens[i] = v->tokens[i] * (r % 4) / 3 * (r % 4 < 3) + v->tokens[i] * (r % 4 == 3);
        must(arm_kv_truncate(c, v->chain[i], v->tokens[i], s & 1, r & 1 ? -1 : (double)(r % 100)), "truncate");
        kv_count(c, v, i);
    } else if (what < 92) {
        if (v->n) kv_leave(c, v, i, r % 4 ? ARM_KV_RELEASE : ARM_KV_DROP, s & 1 ? -1 : (double)(s % 100));
    } else if (what < 95) {
        must(arm_kv_evict(c, 0, r % 20, &taken), "evict");
        for (int32_t k = 1; k < taken.n; k++)
            if (!taken.had[k]) FAIL("evicted a block that was not cached");
    } else if (what < 98) {
        must(arm_kv_rescore(c, 0, (char *)hashes, n, (double)(r % 100)), "rescore");
    } else {
        int64_t rc = arm_kv_resident(c, 0, (char *)hashes, n);
        if (rc < 0 || rc > n) FAIL("resident: %lld", (long long)rc);
    }
}

static inline void kv_drain(arm_ctx *c, kv_worker *v) {
    while (v->n) kv_leave(c, v, v->n - 1, ARM_KV_RELEASE, -1);
}

static inline void kv_check(arm_ctx *c) {
    char why[200];
    if (arm_kv_check(c, why, sizeof why)) FAIL("invariant: %s", why);
}

static inline void kv_check_empty(arm_ctx *c) {
    arm_kv_info p;
    must(arm_kv_at(c, 0, &p), "look at a block pool");
    if (p.used || p.reserved || p.chains || p.free + p.cached != BLOCKS)
        FAIL("%d blocks, %d set aside and %d chains left", p.used, p.reserved, p.chains);
    must(arm_kv_evict(c, 0, BLOCKS, NULL), "evict all");
    must(arm_kv_at(c, 0, &p), "look at a block pool");
    if (p.free != BLOCKS || p.candidates) FAIL("%d of %d blocks are free", p.free, BLOCKS);
}

/* Whoever is dead uses nothing any more. */
static inline void kv_forget(kv_ledger *book, int32_t owner) {
    for (int b = 0; b < BLOCKS; b++) atomic_store(&book->uses[owner][b], 0);
}
#endif
