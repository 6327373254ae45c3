/* How a chain grows: open, extend, fork.
 *
 * The first transaction makes sure of everything and sets it aside (`pending`); then blocks come one by one, cached
 * ones of the hashes first. In a private arena, and for what fits into one log, that is the same transaction. */
#include "arm_kv_internal.h"

/* How many of the hashes are resident after block `tail` (0: from the start), and the last of them. Where a block stands
 * on a shadow of the one before, what counts is that the whole way up from the last one is as long as it should be. */
int64_t kv_survey(arm_ctx *c, arm_kv_pool *p, uint32_t tail, const char *hashes, int64_t n, uint32_t *last) {
    int64_t k = 0, direct = -1;
    uint32_t before = tail, on_the_way = 0;
    for (; k < n; k++) {
        uint32_t b = block_find(c, p, hash_in(hashes, k));
        if (!b) break;
        uint32_t parent = parent_of(c, b);
        if (parent != before) { /* then it stands on a shadow of that one */
            if (!parent || !before || block_hash(c, parent) != block_hash(c, before)) break;
            if (direct < 0) direct = k, on_the_way = before;
        }
        before = b;
    }
    *last = before;
    if (direct < 0) return k;
    uint32_t up = before;
    int64_t depth = 0;
    for (; up && up != tail && depth < k; depth++) up = parent_of(c, up);
    if (up == tail && depth == k) return k;
    *last = on_the_way;
    return direct;
}

static uint32_t up_by(arm_ctx *c, uint32_t b, int64_t n) {
    while (n--) b = parent_of(c, b);
    return b;
}

static int64_t cached_up_from(arm_ctx *c, uint32_t b, int64_t most) {
    int64_t m = 0;
    for (; m < most && !in_use(c, b); m++) b = parent_of(c, b);
    return m;
}

/* A chain of agent `a` now also uses b and all that it is built on, which is in use: what was another's is charged anew.
 * Returns where to go on, 0 at the end. */
static uint32_t join_up(arm_ctx *c, arm_kv_pool *p, uint32_t b, uint32_t a) {
    while (b && log_has_room(c)) {
        if (!charge_join(c, p, b, a)) return 0;
        b = parent_of(c, b);
    }
    return b;
}

/* The m cached blocks that end with `last` come into use; the one above them is `tail`, the chain's last. */
static void pin_cached(arm_ctx *c, arm_kv_pool *p, uint32_t last, int64_t m, uint32_t tail, uint32_t a) {
    for (uint32_t b = last; b != tail; b = parent_of(c, b)) {
        arm_block *k = block(c, b);
        int64_t mark = rdw(c, &k->mark);
        if (LINK(mark)) order_remove(c, p, b);
        wrw(c, &k->mark, (rdw(c, &k->mark) & ~INT64_C(3)) | BLOCK_SEALED);
        wrw(c, &k->refs, PAIR24(1, LOW24(rdw(c, &k->refs)) - (b == last ? 0 : 1)));
        wrw(c, &k->value, TO_AGENT(a));
    }
    if (tail) add_refs(c, tail, 0, -1);
    add(c, &p->cached, -m);
    add(c, &p->used, m);
}

typedef struct {
    arm_chain *h;
    arm_kv_pool *p;
    uint32_t agent, tail, len, sealed;
    int64_t pending, spare; /* spare: set aside and not needed */
} arm_growth;

static arm_growth growth_of(arm_ctx *c, arm_chain *h) {
    int64_t who = rdw(c, &h->who), span = rdw(c, &h->span), seal = rdw(c, &h->seal);
    return (arm_growth){.h = h, .p = kv_pool(c, who_pool(who)), .agent = who_agent(who), .tail = HIGH24(span),
                        .len = LOW24(span), .sealed = HIGH24(seal), .pending = LOW24(seal)};
}

static void growth_done(arm_ctx *c, arm_growth *g) {
    wrw(c, &g->h->span, PAIR24(g->tail, g->len));
    wrw(c, &g->h->seal, PAIR24(g->sealed, g->pending));
    if (!g->spare) return;
    add(c, &g->p->reserved, -g->spare);
    charge(c, g->p, TO_AGENT(g->agent), -g->spare);
}

/* Blocks of the chain that are full and whose hashes are known now: walked from the end. */
static void seal_held(arm_ctx *c, arm_growth *g, const arm_growing *o) {
    uint32_t end = (uint32_t)min64(g->len, o->base + o->n_hashes);
    if (!ARM_DIRECT(c)) end = (uint32_t)min64(end, g->sealed + KV_CHUNK);
    uint32_t b = g->tail;
    for (uint32_t at = g->len; at > g->sealed; at--, b = parent_of(c, b))
        if (at <= end && STATE(rdw(c, &block(c, b)->mark)) == BLOCK_OPEN)
            block_seal(c, g->p, b, hash_in(o->hashes, at - 1 - o->base));
    g->sealed = end;
}

/* Resident blocks of the hashes, k of them ending with `last`, become the chain's. */
static void adopt(arm_ctx *c, arm_growth *g, arm_growing *o, int64_t k, uint32_t last) {
    int64_t m = cached_up_from(c, last, k), used = k - m;
    if (!ARM_DIRECT(c) && m > KV_CHUNK) last = up_by(c, last, m - KV_CHUNK), m = KV_CHUNK;
    uint32_t top = up_by(c, last, m); /* the last one in use already */
    if (used) {
        add_refs(c, top, 1, 0);
        if (g->tail) add_refs(c, g->tail, -1, 0);
        o->joining = join_up(c, g->p, top, g->agent);
    }
    if (m) pin_cached(c, g->p, last, m, top, g->agent);
    add(c, &g->p->reserved, -m);
    g->spare += used;
    g->pending -= used + m;
    g->tail = last;
    g->len += (uint32_t)(used + m);
    g->sealed = g->len;
    o->matched += used + m;
}

static void grow_by_one(arm_ctx *c, arm_growth *g, const arm_growing *o) {
    uint32_t b = block_take(c, g->p, g->tail, TO_AGENT(g->agent), o->taken);
    int64_t i = (int64_t)g->len - o->base;
    if (i >= 0 && i < o->n_hashes && g->sealed == g->len) {
        block_seal(c, g->p, b, hash_in(o->hashes, i));
        g->sealed++;
    }
    g->tail = b;
    g->len++;
    g->pending--;
}

/* The partly filled last block has other readers: a new one takes its place, and it stays pinned until the chain's next
 * operation, so that its content can be copied. */
static void copy_on_write(arm_ctx *c, arm_growth *g, const arm_growing *o) {
    uint32_t source = g->tail, parent = parent_of(c, source);
    uint32_t b = block_take(c, g->p, parent, TO_AGENT(g->agent), o->taken);
    if (parent) add_refs(c, parent, 1, 0);
    wrw(c, &g->h->hold, PAIR24(source, LOW24(rdw(c, &g->h->hold))));
    wr(c, &g->h->copy, g->len);
    g->tail = b;
    g->pending--;
    add(c, &g->p->reserved, -1);
    add(c, &g->p->used, 1);
    add(c, &g->p->taken, 1);
}

static bool is_left(const arm_growth *g, const arm_growing *o) {
    return g->pending || g->sealed < min64(g->len, o->base + o->n_hashes);
}

/* All that one transaction can do. The growth is over when nothing is pending. */
static void grow(arm_ctx *c, arm_growth *g, arm_growing *o) {
    while (g->sealed < min64(g->len, o->base + o->n_hashes) && log_has_room(c)) seal_held(c, g, o);
    while (o->matching && g->pending && log_has_room(c) && !o->joining) {
        int64_t at = g->len - o->base, k = 0;
        uint32_t last = 0;
        int64_t n = min64(o->n_hashes - at, g->pending);
        if (n > 0) k = kv_survey(c, g->p, g->tail, o->hashes + at * 8, n, &last);
        if (!k) break;
        adopt(c, g, o, k, last);
    }
    if (o->joining || !log_has_room(c)) return;
    if (o->match_only) { /* what is not resident any more */
        g->spare += g->pending;
        g->pending = 0;
        wrw(c, &g->h->tokens, (int64_t)g->len * g->p->config.block_tokens);
        return;
    }
    int64_t before = g->pending;
    while (g->pending && log_has_room(c)) grow_by_one(c, g, o);
    int64_t n = before - g->pending;
    add(c, &g->p->reserved, -n);
    add(c, &g->p->used, n);
    add(c, &g->p->taken, n);
}

static int64_t available(arm_ctx *c, arm_kv_pool *p) {
    return (int64_t)p->config.blocks - rdw(c, &p->used) - rdw(c, &p->reserved);
}

/* Code of what is lacking for `need` more blocks in use, 0 if nothing is. */
static int64_t lacking(arm_ctx *c, arm_kv_pool *p, uint32_t a, int64_t need) {
    int which;
    int64_t room = charge_room(c, p, a, &which), blocks = available(c, p);
    if (need > blocks) return lacks(ARM_E_BLOCKS, need - blocks);
    if (need > room) return lacks(which, need - room);
    return 0;
}

static void count_matches(arm_ctx *c, arm_kv_pool *p, const arm_growing *o, int64_t hits) {
    if (!o->n_hashes) return;
    add(c, &p->queries, o->n_hashes);
    if (hits) add(c, &p->hits, hits);
}

/* --- open --- */

static int64_t claim_chain(arm_ctx *c) {
    uint32_t i = rd(c, &c->arena->free_chain);
    if (i) {
        wr(c, &c->arena->free_chain, LOW24(rdw(c, &chain_at(c, i - 1)->span)));
        return i - 1;
    }
    i = rd(c, &c->arena->high_chain);
    if (i == c->arena->config.kv_chains) return -1;
    wr(c, &c->arena->high_chain, i + 1);
    return i;
}

static int64_t new_chain(arm_ctx *c, int64_t i, uint32_t p, uint32_t a, int64_t program, int64_t tokens) {
    arm_chain *h = chain_at(c, (uint32_t)i);
    int64_t state = max64(rdw(c, &h->state), 1 << 4) | CHAIN_OPEN; /* no handle is 0 */
    wrw(c, &h->state, state);
    wrw(c, &h->who, (int64_t)c->slot << 36 | (int64_t)p << 24 | a);
    wrw(c, &h->program, program);
    wrw(c, &h->tokens, tokens);
    wrw(c, &h->hold, 0);
    wr(c, &h->copy, 0);
    add(c, &c->kv_pools[p].chains, 1);
    return make_handle((uint32_t)i, state);
}

static int64_t open_body(arm_ctx *c, const int64_t *args) {
    arm_growing *o = (arm_growing *)(uintptr_t)args[0];
    int64_t who = args[1], tokens = args[3];
    uint32_t a = who & 0xffffff, pi = who >> 24 & 0xfff;
    arm_kv_pool *p = kv_pool(c, pi);
    growing_starts(o);
    o->matching = true;
    if (a >= rd(c, &c->arena->n_agents) || (rd(c, &agent(c, a)->tag) & 0xff) != (uint32_t)(who >> 36 & 0xff))
        return ARM_E_AGENT;
    uint32_t last = 0;
    int64_t k = kv_survey(c, p, 0, o->hashes, o->n_hashes, &last), m = k ? cached_up_from(c, last, k) : 0;
    int64_t total = (tokens + p->config.block_tokens - 1) / p->config.block_tokens, need = total - (k - m);
    if (o->match_only) {
        int which;
        int64_t some = min64(m, min64(max64(0, available(c, p)), charge_room(c, p, a, &which)));
        last = up_by(c, last, m - some);
        k -= m - some;
        total = k;
        tokens = k * p->config.block_tokens;
    } else {
        int64_t rc = lacking(c, p, a, need);
        if (rc) return rc;
    }
    int64_t i = claim_chain(c);
    if (i < 0) return ARM_E_FULL;
    int64_t handle = new_chain(c, i, pi, a, args[2], tokens);
    count_matches(c, p, o, k);
    arm_growth g = {chain_at(c, (uint32_t)i), p, a, 0, 0, 0, total, 0};
    wrw(c, &g.h->hold, k);
    add(c, &p->reserved, total);
    charge(c, p, TO_AGENT(a), total);
    if (k) adopt(c, &g, o, k, last);
    if (g.len == k) o->matching = false;
    grow(c, &g, o);
    growth_done(c, &g);
    o->left = is_left(&g, o);
    return handle;
}

arm_chain *live_chain(arm_ctx *c, int64_t handle) {
    uint32_t i = handle_index(handle);
    if (handle <= 0 || i >= c->arena->config.kv_chains) return NULL;
    int64_t state = rdw(c, &chain_at(c, i)->state);
    return make_handle(i, state) == handle && state_of(state) == CHAIN_OPEN ? chain_at(c, i) : NULL;
}

/* The rest of a growth that did not fit into one transaction. */
static int64_t go_on_body(arm_ctx *c, const int64_t *args) {
    arm_growing *o = (arm_growing *)(uintptr_t)args[0];
    growing_starts(o);
    arm_chain *h = live_chain(c, args[1]);
    if (!h) return ARM_E_STALE; /* somebody released it meanwhile */
    arm_growth g = growth_of(c, h);
    if (o->joining) o->joining = join_up(c, g.p, o->joining, g.agent);
    grow(c, &g, o);
    growth_done(c, &g);
    o->left = is_left(&g, o);
    return ARM_OK;
}

static int64_t finish(arm_ctx *c, arm_growing *o, int64_t handle) {
    int64_t rc = handle;
    while (rc > 0 && (o->left || o->joining)) {
        growing_committed(o);
        int64_t step = arm_run(c, go_on_body, (int64_t[]){(int64_t)(uintptr_t)o, handle}, 0);
        if (step < 0) rc = step;
    }
    return rc;
}

static bool bad_tokens(int64_t tokens) { return tokens < 0 || tokens >= INT64_C(1) << 40; }
static bool bad_hashes(const char *hashes, int64_t n) { return n < 0 || n > 0xffffff || (n && !hashes); }

int64_t arm_kv_open(arm_ctx *c, int64_t who, int64_t program, int64_t tokens, const char *hashes, int64_t n_hashes,
                    arm_kv_taken *taken) {
    ARM_IF_PRIVATE(c, arm_private_kv_open(c, who, program, tokens, hashes, n_hashes, taken));
    uint32_t pi = who >> 24 & 0xfff;
    if (who < 0 || pi >= c->arena->config.kv_pools || bad_tokens(tokens) || bad_hashes(hashes, n_hashes)) return ARM_E_ARGUMENT;
    int64_t size = kv_pool(c, pi)->config.block_tokens;
    if (!size || program < 0 || (uint64_t)program > WIDE_MASK || (tokens && n_hashes > tokens / size)) return ARM_E_ARGUMENT;
    arm_growing o = {.hashes = hashes, .n_hashes = n_hashes, .taken = taken, .match_only = !tokens};
    if (taken) taken->n = 0;
    int64_t handle = arm_run(c, open_body, (int64_t[]){(int64_t)(uintptr_t)&o, who, program, tokens}, 0);
    return finish(c, &o, handle);
}

int64_t arm_kv_take(arm_kv_tap *t, int64_t tokens) {
    ARM_IF_PRIVATE(t->ctx, arm_private_kv_take(t, tokens));
    return tokens > 0 ? arm_kv_open(t->ctx, t->who, 0, tokens, NULL, 0, &t->taken) : ARM_E_ARGUMENT;
}

/* --- extend --- */

static int64_t extend_body(arm_ctx *c, const int64_t *args) {
    arm_growing *o = (arm_growing *)(uintptr_t)args[0];
    arm_chain *h = live_chain(c, args[1]);
    growing_starts(o);
    if (!h) return ARM_E_STALE;
    arm_growth g = growth_of(c, h);
    int64_t hold = rdw(c, &h->hold), tokens = rdw(c, &h->tokens), size = g.p->config.block_tokens;
    if (g.pending) return ARM_E_STATE;
    if (HIGH24(hold)) {
        o->again = true;
        return ARM_OK;
    }
    int64_t all = tokens + args[2], total = (all + size - 1) / size;
    if (g.sealed + o->n_hashes > all / size) return ARM_E_ARGUMENT;
    o->base = g.sealed;
    bool copy = false;
    if (args[2] && tokens % size) {
        arm_block *t = block(c, g.tail);
        copy = rdw(c, &t->refs) != PAIR24(1, 0) || STATE(rdw(c, &t->mark)) != BLOCK_OPEN;
    }
    uint32_t last = 0;
    int64_t k = 0, m = 0;
    o->matching = o->n_hashes && g.sealed == g.len && !(tokens % size);
    if (o->matching) k = kv_survey(c, g.p, g.tail, o->hashes, o->n_hashes, &last);
    if (k) m = cached_up_from(c, last, k);
    int64_t rc = lacking(c, g.p, g.agent, total - g.len + copy - (k - m));
    if (rc) return rc;
    if (o->matching) count_matches(c, g.p, o, k);
    g.pending = total - g.len + copy;
    if (g.pending) {
        add(c, &g.p->reserved, g.pending);
        charge(c, g.p, TO_AGENT(g.agent), g.pending);
    }
    wrw(c, &h->tokens, all);
    if (copy) copy_on_write(c, &g, o);
    int64_t target = g.len + k;
    if (k) adopt(c, &g, o, k, last);
    if (g.len == target) o->matching = false;
    grow(c, &g, o);
    growth_done(c, &g);
    o->left = is_left(&g, o);
    return ARM_OK;
}

int64_t arm_kv_extend(arm_ctx *c, int64_t handle, int64_t tokens, const char *hashes, int64_t n_hashes,
                      arm_kv_taken *taken) {
    ARM_IF_PRIVATE(c, arm_private_kv_extend(c, handle, tokens, hashes, n_hashes, taken));
    if (bad_tokens(tokens) || bad_hashes(hashes, n_hashes)) return ARM_E_ARGUMENT;
    arm_growing o = {.hashes = hashes, .n_hashes = n_hashes, .taken = taken};
    int64_t rc;
    if (taken) taken->n = 0;
    do {
        o.again = false;
        rc = arm_run(c, extend_body, (int64_t[]){(int64_t)(uintptr_t)&o, handle, tokens}, 0);
        if (o.again) kv_let_go(c, handle);
    } while (o.again);
    if (rc == ARM_OK) rc = finish(c, &o, handle);
    return rc < 0 ? rc : o.matched;
}

/* --- fork --- */

static int64_t fork_body(arm_ctx *c, const int64_t *args) {
    arm_chain *h = live_chain(c, args[0]);
    if (!h) return ARM_E_STALE;
    arm_growth g = growth_of(c, h);
    if (g.pending) return ARM_E_STATE;
    int64_t i = claim_chain(c);
    if (i < 0) return ARM_E_FULL;
    int64_t handle = new_chain(c, i, g.p->index, g.agent, args[1], rdw(c, &h->tokens));
    if (g.tail) add_refs(c, g.tail, 1, 0);
    g.h = chain_at(c, (uint32_t)i);
    growth_done(c, &g);
    return handle;
}

int64_t arm_kv_fork(arm_ctx *c, int64_t handle, int64_t program) {
    ARM_IF_PRIVATE(c, arm_private_kv_fork(c, handle, program));
    if (program < 0 || (uint64_t)program > WIDE_MASK) return ARM_E_ARGUMENT;
    return arm_run(c, fork_body, (int64_t[]){handle, program}, 0);
}
