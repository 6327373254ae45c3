/* Looking at the block pools: counts, chains, quotas, and whether all invariants hold. */
#include "arm_kv_internal.h"

#include <stdio.h>

/* --- quotas --- */

static int64_t quota_body(arm_ctx *c, const int64_t *args) {
    cell *at = charge_cell(c, kv_pool(c, (uint32_t)args[0]), args[1] != 0, (uint32_t)args[2]);
    if (args[3] >= 0) wrw(c, at, PAIR24(HIGH24(rdw(c, at)), args[3]));
    return rdw(c, at);
}

static bool bad(arm_ctx *c, int64_t p, int64_t of_tenant, int64_t *index) {
    const arm_config *f = &c->arena->config;
    if (!of_tenant) *index &= 0xffffff;
    return p < 0 || p >= f->kv_pools || *index < 0 || *index >= (of_tenant ? f->tenants : f->agents);
}

int arm_kv_quota(arm_ctx *c, int64_t p, int64_t of_tenant, int64_t index, int64_t blocks) {
    if (bad(c, p, of_tenant, &index) || blocks < 0 || blocks > 0xffffff) return ARM_E_ARGUMENT;
    arm_run(c, quota_body, (int64_t[]){p, of_tenant, index, blocks}, 0);
    return ARM_OK;
}

int arm_kv_charge(arm_ctx *c, int64_t p, int64_t of_tenant, int64_t index, int64_t *charged, int64_t *quota) {
    if (bad(c, p, of_tenant, &index)) return ARM_E_ARGUMENT;
    int64_t w = arm_run(c, quota_body, (int64_t[]){p, of_tenant, index, -1}, 0);
    *charged = HIGH24(w);
    *quota = LOW24(w);
    return ARM_OK;
}

/* --- looking --- */

static int64_t info_body(arm_ctx *c, const int64_t *args) {
    arm_kv_pool *p = kv_pool(c, (uint32_t)args[0]);
    arm_kv_info *o = (arm_kv_info *)(uintptr_t)args[1];
    int64_t used = rdw(c, &p->used), cached = rdw(c, &p->cached);
    *o = (arm_kv_info){.queries = rdw(c, &p->queries), .hits = rdw(c, &p->hits), .taken = rdw(c, &p->taken),
                       .evicted = rdw(c, &p->evicted), .blocks = (int32_t)p->config.blocks,
                       .block_tokens = (int32_t)p->config.block_tokens, .used = (int32_t)used, .cached = (int32_t)cached,
                       .free = (int32_t)(p->config.blocks - used - cached), .reserved = (int32_t)rdw(c, &p->reserved),
                       .candidates = (int32_t)rd(c, &p->heap_n), .chains = (int32_t)rdw(c, &p->chains)};
    return ARM_OK;
}

int arm_kv_at(arm_ctx *c, int32_t p, arm_kv_info *out) {
    if (p < 0 || (uint32_t)p >= c->arena->config.kv_pools) return ARM_E_ARGUMENT;
    return (int)arm_run(c, info_body, (int64_t[]){p, (int64_t)(uintptr_t)out}, 0);
}

int64_t arm_kv_chain_count(arm_ctx *c) {
    return (int64_t)(uint32_t)atomic_load_explicit(&c->arena->high_chain, memory_order_acquire);
}

static int32_t id_of(arm_kv_pool *p, uint32_t b) { return (int32_t)(b - 1 - p->first); }

static int64_t chain_body(arm_ctx *c, const int64_t *args) {
    arm_chain *h = chain_at(c, (uint32_t)args[0]);
    arm_kv_chain_info *o = (arm_kv_chain_info *)(uintptr_t)args[1];
    int64_t state = rdw(c, &h->state), who = rdw(c, &h->who), span = rdw(c, &h->span), hold = rdw(c, &h->hold);
    arm_kv_pool *p = kv_pool(c, who_pool(who));
    *o = (arm_kv_chain_info){.copy_from = -1, .copy_to = -1};
    if (state_of(state) != CHAIN_OPEN) return ARM_OK;
    o->handle = make_handle((uint32_t)args[0], state);
    o->program = rdw(c, &h->program);
    o->tokens = rdw(c, &h->tokens);
    o->pool = (int32_t)p->index;
    o->agent = (int32_t)who_agent(who);
    o->owner = (int32_t)who_owner(who);
    o->blocks = (int32_t)LOW24(span);
    o->sealed = (int32_t)HIGH24(rdw(c, &h->seal));
    o->matched = (int32_t)LOW24(hold);
    if (!HIGH24(hold) || !rd(c, &h->copy)) return ARM_OK;
    uint32_t b = HIGH24(span);
    for (uint32_t n = LOW24(span); n > rd(c, &h->copy); n--) b = parent_of(c, b);
    o->copy_from = id_of(p, HIGH24(hold));
    o->copy_to = id_of(p, b);
    return ARM_OK;
}

int arm_kv_chain_at(arm_ctx *c, int64_t index, arm_kv_chain_info *out) {
    if (index < 0 || index >= c->arena->config.kv_chains) return ARM_E_ARGUMENT;
    return (int)arm_run(c, chain_body, (int64_t[]){index, (int64_t)(uintptr_t)out}, 0);
}

static int64_t blocks_body(arm_ctx *c, const int64_t *args) {
    arm_chain *h = live_chain(c, args[0]);
    if (!h) return ARM_E_STALE;
    arm_kv_pool *p = kv_pool(c, who_pool(rdw(c, &h->who)));
    int64_t span = rdw(c, &h->span), at = LOW24(span);
    int32_t *out = (int32_t *)(uintptr_t)args[2];
    for (uint32_t b = HIGH24(span); at > args[1]; b = parent_of(c, b))
        if (--at - args[1] < args[3]) out[at - args[1]] = id_of(p, b);
    return LOW24(span);
}

int64_t arm_kv_blocks(arm_ctx *c, int64_t handle, int64_t from, int32_t *out, int64_t room) {
    if (from < 0 || room < 0 || (room && !out)) return ARM_E_ARGUMENT;
    return arm_run(c, blocks_body, (int64_t[]){handle, from, (int64_t)(uintptr_t)out, room}, 0);
}

static int64_t resident_body(arm_ctx *c, const int64_t *args) {
    uint32_t last;
    return kv_survey(c, kv_pool(c, (uint32_t)args[0]), 0, (const char *)(uintptr_t)args[1], args[2], &last);
}

int64_t arm_kv_resident(arm_ctx *c, int64_t p, const char *hashes, int64_t n) {
    if (p < 0 || p >= c->arena->config.kv_pools || n < 0 || (n && !hashes)) return ARM_E_ARGUMENT;
    return arm_run(c, resident_body, (int64_t[]){p, (int64_t)(uintptr_t)hashes, n}, 0);
}

/* --- agents' places in the table of names --- */

bool kv_agent_idle(arm_ctx *c, uint32_t a) {
    for (uint32_t p = 0; p < c->arena->config.kv_pools; p++)
        if (HIGH24(rdw(c, charge_cell(c, kv_pool(c, p), false, a)))) return false;
    uint32_t n = c->arena->config.kv_chains ? rd(c, &c->arena->high_chain) : 0;
    for (uint32_t i = 0; i < n; i++)
        if (state_of(rdw(c, &chain_at(c, i)->state)) != CHAIN_FREE && who_agent(rdw(c, &chain_at(c, i)->who)) == a) return false;
    return true;
}

/* Its place goes to another name, which has no quota yet. */
void kv_agent_gone(arm_ctx *c, uint32_t a) {
    for (uint32_t p = 0; p < c->arena->config.kv_pools; p++) wrw(c, charge_cell(c, kv_pool(c, p), false, a), 0);
}

/* --- invariants --- */

#define REQUIRE(what, ...)                                                                                             \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            snprintf((char *)(uintptr_t)args[0], (size_t)args[1], __VA_ARGS__);                                        \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static bool chain_lives(arm_ctx *c, arm_chain *h, arm_kv_pool *p) {
    return state_of(rdw(c, &h->state)) != CHAIN_FREE && who_pool(rdw(c, &h->who)) == p->index;
}

/* Counts of one block, found by looking at everything. */
static int64_t check_block(arm_ctx *c, const int64_t *args, arm_kv_pool *p, uint32_t b, uint32_t high, uint32_t chains) {
    int64_t mark = rdw(c, &block(c, b)->mark), refs = rdw(c, &block(c, b)->refs);
    uint32_t pins = 0, kids = 0, state = STATE(mark);
    if (state == BLOCK_FREE) return 0;
    for (uint32_t k = p->first + 1; k <= high; k++) {
        uint32_t s = STATE(rdw(c, &block(c, k)->mark));
        if (s == BLOCK_FREE || parent_of(c, k) != b) continue;
        kids += s == BLOCK_CACHED;
        pins += s != BLOCK_CACHED;
    }
    for (uint32_t i = 0; i < chains; i++) {
        arm_chain *h = chain_at(c, i);
        if (!chain_lives(c, h, p)) continue;
        pins += HIGH24(rdw(c, &h->span)) == b;
        pins += HIGH24(rdw(c, &h->hold)) == b;
    }
    REQUIRE(HIGH24(refs) == pins && LOW24(refs) == kids, "block %u: %u pins and %u kids counted, %u and %u found", b, HIGH24(refs),
            LOW24(refs), pins, kids);
    REQUIRE((state == BLOCK_CACHED) == !pins, "block %u: state %u with %u pins", b, state, pins);
    REQUIRE((LINK(mark) != 0) == (state == BLOCK_CACHED && !kids), "block %u: place %u in the order, %u kids", b, LINK(mark), kids);
    if (LINK(mark)) REQUIRE(rd(c, c->kv_heap + p->first + LINK(mark) - 1) == b, "block %u is not at its place in the order", b);
    if (state >= BLOCK_SEALED)
        REQUIRE((block_find(c, p, block_hash(c, b)) == b) == !(mark & BLOCK_SHADOW), "block %u: shadow or not in the table", b);
    return 0;
}

static int64_t check_charges(arm_ctx *c, const int64_t *args, arm_kv_pool *p, uint32_t high, uint32_t chains) {
    const arm_config *f = &c->arena->config;
    for (uint32_t i = 0; i < f->agents + f->tenants; i++) {
        bool of_tenant = i >= f->agents;
        uint32_t who = of_tenant ? i - f->agents : i;
        int64_t found = 0, counted = HIGH24(rdw(c, charge_cell(c, p, of_tenant, who)));
        for (uint32_t b = p->first + 1; b <= high; b++) {
            uint32_t s = STATE(rdw(c, &block(c, b)->mark));
            int64_t to = s == BLOCK_OPEN || s == BLOCK_SEALED ? rdw(c, &block(c, b)->value) : 0;
            found += of_tenant ? to == TO_TENANT(who) || (to >> 24 == 1 && rd(c, &agent(c, LOW24(to))->tenant) == who) : to == TO_AGENT(who);
        }
        for (uint32_t k = 0; k < chains; k++) {
            arm_chain *h = chain_at(c, k);
            uint32_t a = who_agent(rdw(c, &h->who));
            if (chain_lives(c, h, p) && (of_tenant ? rd(c, &agent(c, a)->tenant) : a) == who) found += LOW24(rdw(c, &h->seal));
        }
        REQUIRE(found == counted, "pool %u, %s %u: %lld blocks charged, %lld found", p->index, of_tenant ? "tenant" : "agent", who,
                (long long)counted, (long long)found);
    }
    return 0;
}

static int64_t check_pool(arm_ctx *c, const int64_t *args, arm_kv_pool *p) {
    uint32_t n[4] = {0}, high = p->first + rd(c, &p->high), chains = rd(c, &c->arena->high_chain), ends = 0, free_n = 0;
    int64_t reserved = 0, lives = 0;
    for (uint32_t b = p->first + 1; b <= high; b++) {
        int64_t mark = rdw(c, &block(c, b)->mark);
        n[STATE(mark)]++;
        ends += STATE(mark) == BLOCK_CACHED && LINK(mark);
    }
    for (uint32_t b = rd(c, &p->free_head); b && free_n <= p->config.blocks; b = LINK(rdw(c, &block(c, b)->mark))) free_n++;
    for (uint32_t i = 0; i < chains; i++) {
        arm_chain *h = chain_at(c, i);
        if (!chain_lives(c, h, p)) continue;
        lives++;
        reserved += LOW24(rdw(c, &h->seal));
        uint32_t len = 0, b = HIGH24(rdw(c, &h->span));
        for (; b && len <= p->config.blocks; b = parent_of(c, b)) len++;
        REQUIRE(len == LOW24(rdw(c, &h->span)), "chain %u: %u blocks long, %u found", i, LOW24(rdw(c, &h->span)), len);
    }
    REQUIRE(lives == rdw(c, &p->chains), "pool %u: %lld chains counted, %lld found", p->index, (long long)rdw(c, &p->chains), (long long)lives);
    REQUIRE(free_n == n[BLOCK_FREE], "pool %u: %u blocks are free, %u in the list", p->index, n[BLOCK_FREE], free_n);
    REQUIRE(n[BLOCK_OPEN] + n[BLOCK_SEALED] == rdw(c, &p->used), "pool %u: %lld blocks in use counted, %u found", p->index,
            (long long)rdw(c, &p->used), n[BLOCK_OPEN] + n[BLOCK_SEALED]);
    REQUIRE(n[BLOCK_CACHED] == rdw(c, &p->cached), "pool %u: %lld cached blocks counted, %u found", p->index,
            (long long)rdw(c, &p->cached), n[BLOCK_CACHED]);
    REQUIRE(reserved == rdw(c, &p->reserved), "pool %u: %lld blocks set aside, %lld found", p->index, (long long)rdw(c, &p->reserved),
            (long long)reserved);
    REQUIRE(rdw(c, &p->used) + reserved <= p->config.blocks, "pool %u: more promised than there is", p->index);
    REQUIRE(ends == rd(c, &p->heap_n), "pool %u: %u in the order, %u found", p->index, rd(c, &p->heap_n), ends);
    for (uint32_t i = 1; i < rd(c, &p->heap_n); i++) {
        uint32_t b = rd(c, c->kv_heap + p->first + i), up = rd(c, c->kv_heap + p->first + (i - 1) / 2);
        int64_t x = rdw(c, &block(c, b)->value), y = rdw(c, &block(c, up)->value);
        REQUIRE(y < x || (y == x && up < b), "pool %u: order broken at %u", p->index, i);
    }
    if (p->config.blocks > 4096) return 0; /* what follows looks at each block for each block */
    for (uint32_t b = p->first + 1; b <= high; b++)
        if (check_block(c, args, p, b, high, chains)) return 1;
    return check_charges(c, args, p, high, chains);
}

static int64_t kv_check_body(arm_ctx *c, const int64_t *args) {
    for (uint32_t p = 0; p < c->arena->config.kv_pools; p++)
        if (kv_pool(c, p)->config.blocks && check_pool(c, args, kv_pool(c, p))) return 1;
    return 0;
}

int arm_kv_check(arm_ctx *c, char *why, size_t room) {
    if (!why || !room) return ARM_E_ARGUMENT;
    why[0] = 0;
    return (int)arm_run(c, kv_check_body, (int64_t[]){(int64_t)(uintptr_t)why, (int64_t)room}, 0);
}
