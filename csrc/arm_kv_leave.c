/* How blocks leave use: truncate, release, drop, evict; what a dead owner's chains held.
 *
 * A chain that becomes shorter moves its pin to the block that is the last one then; the old last one stays pinned as
 * `hold` until its pin has been taken upward, block by block, to one that others use too. */
#include "arm_kv_internal.h"

typedef struct {
    int64_t handle, how, tokens, score; /* tokens: of truncate, -1: release */
    int64_t score_now;
    uint64_t claim;                     /* bury: what the owner's place must still hold */
    uint32_t owner;
    bool begun;
    int64_t out_of_use, out_before;
    bool left;
} arm_leaving;

/* 47 bits of a double that is not negative, which order as it does; a negative one stands for the time of the call. */
static int64_t score_bits(double score) {
    uint64_t bits;
    if (score < 0) return -1;
    memcpy(&bits, &score, 8);
    return (int64_t)(bits >> 16);
}

static int64_t score_now(arm_ctx *c, arm_kv_pool *p, int64_t score) {
    if (score >= 0) return score;
    add(c, &p->clock, 1);
    return score_bits((double)rdw(c, &p->clock));
}

/* Takes the pin of `hold` away. Returns the block that has the pin now (the log is full), 0 at the end. */
static uint32_t unpin(arm_ctx *c, arm_kv_pool *p, uint32_t b, bool drop, int64_t score, int64_t *out) {
    int64_t n = 0, kept = 0, charged = 0, payer = 0;
    uint32_t kids = 0; /* cached kids that the one before has left to this one */
    while (b && log_has_room(c)) {
        arm_block *k = block(c, b);
        int64_t refs = rdw(c, &k->refs) + kids, mark = rdw(c, &k->mark), to = rdw(c, &k->value);
        kids = 0;
        if (HIGH24(refs) > 1) {
            wrw(c, &k->refs, refs - (INT64_C(1) << 24));
            b = 0;
            break;
        }
        if (to != payer) {
            charge(c, p, payer, -charged);
            payer = to, charged = 0;
        }
        charged++;
        n++;
        uint32_t parent = parent_of(c, b);
        if (LOW24(refs) || (STATE(mark) == BLOCK_SEALED && !drop && !(mark & BLOCK_SHADOW))) {
            wrw(c, &k->refs, LOW24(refs));
            wrw(c, &k->mark, mark | BLOCK_CACHED);
            wrw(c, &k->value, score);
            if (!LOW24(refs)) order_add(c, p, b);
            kids = 1;
            kept++;
        } else {
            block_free(c, p, b, mark);
        }
        b = parent; /* it loses a kid in use and gains this pin */
    }
    if (b && kids) add_refs(c, b, 0, kids);
    charge(c, p, payer, -charged);
    add(c, &p->used, -n);
    if (kept) add(c, &p->cached, kept);
    *out += n;
    return b;
}

static void close_chain(arm_ctx *c, arm_chain *h, arm_kv_pool *p) {
    wrw(c, &h->state, ((rdw(c, &h->state) >> 4) + 1) << 4);
    wrw(c, &h->span, rd(c, &c->arena->free_chain));
    wr(c, &c->arena->free_chain, (uint32_t)(h - c->chains) + 1);
    add(c, &p->chains, -1);
}

static uint64_t claim_of(arm_ctx *c, uint32_t who) {
    return atomic_load_explicit(&owner(c, who)->claim, memory_order_acquire);
}

/* One transaction of leaving: the first moves the pin, each takes it upward, the last closes the chain. */
static int64_t leave_body(arm_ctx *c, const int64_t *args) {
    arm_leaving *o = (arm_leaving *)(uintptr_t)args[0];
    uint32_t i = handle_index(o->handle);
    arm_chain *h = chain_at(c, i);
    int64_t state = rdw(c, &h->state), who = rdw(c, &h->who);
    o->out_of_use = o->out_before;
    o->left = false;
    if (make_handle(i, state) != o->handle || state_of(state) == CHAIN_FREE) return ARM_E_STALE;
    if (o->claim && !o->begun && (who_owner(who) != o->owner || claim_of(c, o->owner) != o->claim)) return ARM_E_STALE;
    bool closing = state_of(state) == CHAIN_CLOSING, ends = o->tokens < 0;
    if (closing && !ends) return ARM_E_STALE;
    arm_kv_pool *p = kv_pool(c, who_pool(who));
    int64_t span = rdw(c, &h->span), seal = rdw(c, &h->seal), hold = rdw(c, &h->hold);
    int64_t size = p->config.block_tokens;
    uint32_t held = HIGH24(hold), tail = HIGH24(span), len = LOW24(span);
    if (!ends && LOW24(seal)) return ARM_E_STATE; /* somebody is making it longer */
    if (!ends && o->tokens > rdw(c, &h->tokens)) return ARM_E_ARGUMENT;
    int64_t score = o->score_now = score_now(c, p, o->score);
    if (LOW24(seal)) {
        add(c, &p->reserved, -(int64_t)LOW24(seal));
        charge(c, p, TO_AGENT(who_agent(who)), -(int64_t)LOW24(seal));
        wrw(c, &h->seal, PAIR24(HIGH24(seal), 0));
    }
    if (ends && !closing) {
        wrw(c, &h->state, (state & ~INT64_C(15)) | CHAIN_CLOSING);
        wrw(c, &h->who, (who & ~(INT64_C(0xfff) << 36)) | (int64_t)c->slot << 36);
    }
    if (held) held = unpin(c, p, held, o->how == ARM_KV_DROP, score, &o->out_of_use);
    if (!held) {
        uint32_t want = ends ? 0 : (uint32_t)((o->tokens + size - 1) / size);
        if (len > want) {
            uint32_t top = tail;
            for (uint32_t n = len; n > want; n--) top = parent_of(c, top);
            if (top) add_refs(c, top, 1, 0);
            wrw(c, &h->span, PAIR24(top, want));
            held = unpin(c, p, tail, o->how == ARM_KV_DROP, score, &o->out_of_use);
        }
        if (!ends) {
            wrw(c, &h->seal, PAIR24(min64(HIGH24(seal), o->tokens / size), 0));
            wrw(c, &h->tokens, o->tokens);
        }
    }
    wrw(c, &h->hold, PAIR24(held, LOW24(hold)));
    o->left = held || (ends && LOW24(rdw(c, &h->span)));
    if (ends && !o->left) close_chain(c, h, p);
    return ARM_OK;
}

static int64_t leave(arm_ctx *c, arm_leaving *o) {
    int64_t rc;
    do {
        rc = arm_run(c, leave_body, (int64_t[]){(int64_t)(uintptr_t)o}, 0);
        o->out_before = o->out_of_use;
        o->score = o->score_now; /* all of it leaves at one time */
        o->begun = true;
    } while (rc == ARM_OK && o->left);
    return rc < 0 ? rc : o->out_of_use;
}

static bool bad_handle(arm_ctx *c, int64_t handle) {
    return handle <= 0 || handle_index(handle) >= c->arena->config.kv_chains;
}

static bool bad_score(double score) { return score != score || score > 1e300; }

int64_t arm_kv_release(arm_ctx *c, int64_t handle, int64_t how, double score) {
    ARM_IF_PRIVATE(c, arm_private_kv_release(c, handle, how, score));
    if (bad_score(score) || how < 0 || how > ARM_KV_DROP) return ARM_E_ARGUMENT;
    if (bad_handle(c, handle)) return ARM_E_STALE;
    return leave(c, &(arm_leaving){.handle = handle, .how = how, .tokens = -1, .score = score_bits(score)});
}

int64_t arm_kv_give(arm_ctx *c, int64_t handle) {
    ARM_IF_PRIVATE(c, arm_private_kv_give(c, handle));
    return bad_handle(c, handle) ? ARM_E_STALE : leave(c, &(arm_leaving){.handle = handle, .tokens = -1, .score = -1});
}

int64_t arm_kv_truncate(arm_ctx *c, int64_t handle, int64_t tokens, int64_t how, double score) {
    ARM_IF_PRIVATE(c, arm_private_kv_truncate(c, handle, tokens, how, score));
    if (bad_score(score) || how < 0 || how > ARM_KV_DROP || tokens < 0) return ARM_E_ARGUMENT;
    if (bad_handle(c, handle)) return ARM_E_STALE;
    return leave(c, &(arm_leaving){.handle = handle, .how = how, .tokens = tokens, .score = score_bits(score)});
}

/* --- what a copy was made from --- */

static int64_t let_go_body(arm_ctx *c, const int64_t *args) {
    arm_chain *h = live_chain(c, args[0]);
    int64_t n = 0;
    if (!h) return ARM_E_STALE;
    arm_kv_pool *p = kv_pool(c, who_pool(rdw(c, &h->who)));
    int64_t hold = rdw(c, &h->hold);
    uint32_t held = HIGH24(hold);
    if (held) held = unpin(c, p, held, false, score_now(c, p, -1), &n);
    wrw(c, &h->hold, PAIR24(held, LOW24(hold)));
    return held;
}

void kv_let_go(arm_ctx *c, int64_t handle) {
    while (arm_run(c, let_go_body, (int64_t[]){handle}, 0) > 0) continue;
}

/* --- a dead owner --- */

static uint32_t rd_raw(cell *p) { return (uint32_t)atomic_load_explicit(p, memory_order_acquire); }

void kv_bury(arm_ctx *c, uint32_t who, uint64_t claim) {
    uint32_t n = c->arena->config.kv_chains ? rd_raw(&c->arena->high_chain) : 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t state = (int64_t)(atomic_load_explicit(&chain_at(c, i)->state, memory_order_acquire) & WIDE_MASK);
        if (state_of(state) == CHAIN_FREE) continue;
        leave(c, &(arm_leaving){.handle = make_handle(i, state), .tokens = -1, .score = -1, .claim = claim, .owner = who});
    }
}

/* --- cached blocks --- */

typedef struct {
    arm_kv_taken *taken;
    int32_t taken_before;
} arm_evicting;

static int64_t evict_body(arm_ctx *c, const int64_t *args) {
    arm_kv_pool *p = kv_pool(c, (uint32_t)args[0]);
    arm_evicting *o = (arm_evicting *)(uintptr_t)args[2];
    int64_t n = 0;
    if (o->taken) o->taken->n = o->taken_before;
    for (; n < args[1] && rd(c, &p->heap_n) && log_has_room(c); n++)
        block_to_free_list(c, p, block_evict(c, p, o->taken));
    return n;
}

int64_t arm_kv_evict(arm_ctx *c, int64_t p, int64_t n, arm_kv_taken *taken) {
    ARM_IF_PRIVATE(c, arm_private_kv_evict(c, p, n, taken));
    if (p < 0 || p >= c->arena->config.kv_pools || n < 0) return ARM_E_ARGUMENT;
    arm_evicting o = {taken, 0};
    if (taken) taken->n = 0;
    int64_t done = 0, step;
    do {
        step = arm_run(c, evict_body, (int64_t[]){p, n - done, (int64_t)(uintptr_t)&o}, 0);
        if (taken) o.taken_before = taken->n;
        done += step;
    } while (step > 0 && done < n);
    return done;
}

static int64_t rescore_body(arm_ctx *c, const int64_t *args) {
    arm_kv_pool *p = kv_pool(c, (uint32_t)args[0]);
    const char *hashes = (const char *)(uintptr_t)args[1];
    int64_t at = args[2];
    for (; at < args[3] && log_has_room(c); at++) {
        uint32_t b = block_find(c, p, hash_in(hashes, at));
        if (!b) return ~at;
        int64_t mark = rdw(c, &block(c, b)->mark);
        if (STATE(mark) != BLOCK_CACHED) continue;
        wrw(c, &block(c, b)->value, args[4]);
        if (LINK(mark)) order_moved(c, p, b);
    }
    return at;
}

int64_t arm_kv_rescore(arm_ctx *c, int64_t p, const char *hashes, int64_t n, double score) {
    ARM_IF_PRIVATE(c, arm_private_kv_rescore(c, p, hashes, n, score));
    if (p < 0 || p >= c->arena->config.kv_pools || n < 0 || (n && !hashes)) return ARM_E_ARGUMENT;
    if (bad_score(score) || score < 0) return ARM_E_ARGUMENT;
    int64_t at = 0;
    while (at >= 0 && at < n)
        at = arm_run(c, rescore_body, (int64_t[]){p, (int64_t)(uintptr_t)hashes, at, n, score_bits(score)}, 0);
    return at < 0 ? ~at : at;
}
