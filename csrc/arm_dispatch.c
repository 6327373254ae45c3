/* Who runs next: the one place where lanes, levels, fairness, limits and scopes meet. */
#include "arm_internal.h"

#define GRANTS 4 /* a transaction makes at most so many, to keep its write log short */

bool alive(arm_ctx *c, uint32_t t, uint32_t gen, int *state) {
    if (!t) return false;
    int64_t s = rdw(c, &ticket(c, t - 1)->state);
    *state = state_of(s);
    return (uint32_t)(s >> 4) == gen;
}

/* A zombie within the bound has given its lane back; one beyond it keeps a lane busy. */
bool lane_free(arm_ctx *c, arm_pool *p) {
    uint32_t used = rd(c, &p->used), dead = rd(c, &p->dead);
    if (dead > p->config.zombies) used += dead - p->config.zombies;
    return used < p->config.lanes;
}

/* --- loans: a child of the same pool may ride on the lane of the lease that waits for it --- */

static arm_ticket *lender_of(arm_ctx *c, uint32_t t, uint32_t *index) {
    int state;
    uint32_t l = rd(c, &ticket(c, t)->lender);
    if (!alive(c, l, rd(c, &ticket(c, t)->lender_gen), &state) || state != ARM_RUNNING) return NULL;
    *index = l - 1;
    return ticket(c, l - 1);
}

void child_wait(arm_ctx *c, uint32_t t) {
    uint32_t i;
    arm_ticket *l = lender_of(c, t, &i), *k = ticket(c, t);
    if (!l) return;
    uint32_t last = rd(c, &l->wtail);
    wr(c, &k->wnext, 0);
    wr(c, &k->wprev, last);
    wr(c, last ? &ticket(c, last - 1)->wnext : &l->whead, t + 1);
    wr(c, &l->wtail, t + 1);
    if (last) return;
    cell *lend = &pool(c, meta_pool(rd(c, &k->meta)))->lend;
    uint32_t first = rd(c, lend);
    wr(c, &l->lnext, first);
    wr(c, &l->lprev, 0);
    if (first) wr(c, &ticket(c, first - 1)->lprev, i + 1);
    wr(c, lend, i + 1);
}

static void stop_lending(arm_ctx *c, uint32_t i) {
    arm_ticket *l = ticket(c, i);
    uint32_t n = rd(c, &l->lnext), p = rd(c, &l->lprev);
    cell *lend = &pool(c, meta_pool(rd(c, &l->meta)))->lend;
    wr(c, p ? &ticket(c, p - 1)->lnext : lend, n);
    if (n) wr(c, &ticket(c, n - 1)->lprev, p);
    wr(c, &l->whead, 0);
    wr(c, &l->wtail, 0);
}

void child_leave(arm_ctx *c, uint32_t t) {
    uint32_t i;
    arm_ticket *l = lender_of(c, t, &i), *k = ticket(c, t);
    if (!l) return;
    uint32_t n = rd(c, &k->wnext), p = rd(c, &k->wprev);
    if (!n && !p && rd(c, &l->whead) != t + 1) return;
    if (!n && !p) {
        stop_lending(c, i);
        return;
    }
    wr(c, p ? &ticket(c, p - 1)->wnext : &l->whead, n);
    wr(c, n ? &ticket(c, n - 1)->wprev : &l->wtail, p);
}

/* The lane of a lease that ends: back to its lender, on to a child that rides on it, or free. */
void lane_give_back(arm_ctx *c, uint32_t t) {
    arm_ticket *k = ticket(c, t);
    uint32_t m = rd(c, &k->meta), rider = rd(c, &k->loan), i;
    arm_pool *p = pool(c, meta_pool(m));
    if (rd(c, &k->whead)) stop_lending(c, t);
    arm_ticket *l = m & META_LOAN ? lender_of(c, t, &i) : NULL;
    if (rider) {
        arm_ticket *r = ticket(c, rider - 1);
        if (l) {
            wr(c, &r->lender, i + 1);
            wr(c, &r->lender_gen, (uint32_t)(rdw(c, &l->state) >> 4));
        } else {
            wr(c, &r->meta, rd(c, &r->meta) & ~META_LOAN);
        }
    }
    if (l) wr(c, &l->loan, rider);
    else if (!rider) wr(c, &p->used, rd(c, &p->used) - 1);
    wr(c, &k->loan, 0);
}

/* --- granting --- */

static void deliver(arm_ctx *c, uint32_t t, int64_t handle) {
    uint32_t o = who_owner(rdw(c, &ticket(c, t)->who));
    if (o == c->slot) {
        c->io.granted[c->granted++] = handle;
        return;
    }
    arm_owner_rec *rec = owner(c, o);
    uint32_t last = rd(c, &rec->mtail);
    wr(c, &ticket(c, t)->mail, 0);
    wr(c, &ticket(c, t)->meta, rd(c, &ticket(c, t)->meta) | META_MAILED);
    wr(c, last ? &ticket(c, last - 1)->mail : &rec->mhead, t + 1);
    wr(c, &rec->mtail, t + 1);
    for (int32_t i = 0; i < c->woken; i++)
        if (c->io.wake[i] == (int32_t)o) return;
    if (c->woken < ARM_MAX_OUT) c->io.wake[c->woken++] = (int32_t)o;
}

void grant(arm_ctx *c, uint32_t t, bool queued, bool in_turn, bool loan) {
    arm_ticket *k = ticket(c, t);
    int64_t state = rdw(c, &k->state), who = rdw(c, &k->who);
    uint32_t m = rd(c, &k->meta), p = meta_pool(m);
    if (queued) {
        child_leave(c, t);
        queue_serve(c, t, in_turn);
    }
    limits_take(c, t);
    if (loan) {
        wr(c, &k->meta, rd(c, &k->meta) | META_LOAN);
        wr(c, &ticket(c, rd(c, &k->lender) - 1)->loan, t + 1);
    } else {
        wr(c, &pool(c, p)->used, rd(c, &pool(c, p)->used) + 1);
    }
    wrw(c, &k->state, (state & ~INT64_C(15)) | ARM_RUNNING);
    wrw(c, &k->granted, c->now);
    int64_t run = rdw(c, &k->run_until); /* a duration until now */
    if (run) wrw(c, &k->run_until, c->now + run);
    scope_started(c, who_scope(who));
    if (pool(c, p)->config.account_scope >= 0) scope_started(c, (uint32_t)pool(c, p)->config.account_scope);
    int64_t handle = make_handle(t, state);
    arm_note(c, ARM_EV_GRANT, handle, who_agent(who), p, meta_level(m), c->now - rdw(c, &k->submitted));
    if (queued) deliver(c, t, handle);
}

/* --- choosing --- */

enum { NOTHING, DONE, STOP };

/* One that takes several places of a gauge waits for many to end, so none may begin. */
static bool may_be_passed(arm_ctx *c, uint32_t t, const arm_pool_config *f, int lacking) {
    arm_ticket *k = ticket(c, t);
    int64_t since = rdw(c, &k->blocked);
    if (!since) {
        wrw(c, &k->blocked, since = max64(1, c->now));
    }
    if (f->takes[lacking] > 1 && limit(c, f->limits[lacking])->config.shape == ARM_GAUGE) return false;
    return rd(c, &k->passes) < c->arena->config.backfill_passes && c->now - since < c->arena->config.backfill_us;
}

/* `head`: the first ticket, once it has turned out to lack something. `nested`: its patience is used up, but it waits
 * for what leases hold, so calls that leases wait for still pass. */
typedef struct {
    uint32_t head;
    bool nested;
} arm_passing;

static int try_level(arm_ctx *c, arm_pool *p, uint32_t level, arm_passing *by) {
    arm_walk w;
    for (uint32_t t = walk_first(c, p, &w, level); t; t = walk_next(c, &w)) {
        if (by->nested && !is_nested(c, t - 1)) continue;
        int64_t open = scope_open_at(c, who_scope(rdw(c, &ticket(c, t - 1)->who)));
        if (open) {
            if (rd(c, &p->nscopes) > 1) {
                scope_park(c, t - 1);
                return DONE;
            }
            earliest(c, open);
            return STOP;
        }
        int lacking = 0;
        if (limits_fit(c, t - 1, &lacking)) {
            if (by->head) wr(c, &ticket(c, by->head - 1)->passes, rd(c, &ticket(c, by->head - 1)->passes) + 1);
            grant(c, t - 1, true, !by->head, false);
            return DONE;
        }
        if (by->head) continue;
        by->head = t;
        int64_t due = limits_due(c, t - 1);
        if (due >= 0) earliest(c, due);
        bool passed = may_be_passed(c, t - 1, &p->config, lacking);
        if (!passed) limits_save(c, t - 1);
        const arm_limit_config *f = &limit(c, p->config.limits[lacking])->config;
        if (f->unit == ARM_REQUESTS && f->shape != ARM_GAUGE) return STOP; /* everybody needs one */
        if (!passed && !lacks_gauge(c, t - 1)) return STOP;
        by->nested = !passed;
    }
    return by->head && !by->nested && w.cut ? STOP : NOTHING; /* one not looked at may fit: levels are strict */
}

static int try_lenders(arm_ctx *c, arm_pool *p) {
    uint32_t looked = 0;
    for (uint32_t l = rd(c, &p->lend); l && looked < ARM_SCAN; l = rd(c, &ticket(c, l - 1)->lnext), looked++) {
        if (rd(c, &ticket(c, l - 1)->loan)) continue;
        uint32_t t = rd(c, &ticket(c, l - 1)->whead);
        if (!t || (rd(c, &ticket(c, t - 1)->meta) & META_PARKED)) continue;
        if (scope_open_at(c, who_scope(rdw(c, &ticket(c, t - 1)->who)))) continue;
        if (limits_fit(c, t - 1, NULL)) {
            grant(c, t - 1, true, false, true);
            return DONE;
        }
        int64_t due = limits_due(c, t - 1);
        if (due >= 0) earliest(c, due);
    }
    return NOTHING;
}

static bool log_half_full(arm_ctx *c) { return c->nwrites > ARM_MAX_WRITES / 2; }

/* One grant (or one step towards it) in the domain: pools that share limits, most important head first. */
static bool step(arm_ctx *c, uint32_t domain) {
    uint64_t tried = 0;
    for (;;) {
        arm_pool *best = NULL;
        uint32_t best_level = 3, best_bit = 0, bit = 0;
        int64_t best_arrival = 0;
        for (uint32_t i = c->arena->domain_first[domain]; i; i = pool(c, i - 1)->domain_next, bit++) {
            arm_pool *p = pool(c, i - 1);
            if (tried >> bit & 1 || !rd(c, &p->waiting)) continue;
            bool lane = lane_free(c, p);
            if (!lane && !rd(c, &p->lend)) continue;
            if (!tried) { /* first round */
                if (p->config.account_scope >= 0) {
                    int64_t open = scope_open_at(c, (uint32_t)p->config.account_scope);
                    if (open) {
                        earliest(c, open);
                        continue;
                    }
                }
                queue_lift(c, i - 1);
                if (rd(c, &p->parkers)) scope_unpark(c, i - 1);
                if (log_half_full(c)) return true;
                if (rd(c, &p->lend) && try_lenders(c, p) == DONE) return true;
            } else if (p->config.account_scope >= 0 && scope_open_at(c, (uint32_t)p->config.account_scope)) {
                continue;
            }
            if (!lane) continue;
            for (uint32_t level = 0; level < 3 && level <= best_level; level++) {
                uint32_t f = rd(c, &p->level[level].head[0]);
                if (!f) continue;
                int64_t arrival = rdw(c, &flow(c, f - 1)->arrival);
                if (level < best_level || arrival < best_arrival) best = p, best_level = level, best_arrival = arrival, best_bit = bit;
                break;
            }
        }
        if (!best) return false;
        arm_passing by = {0};
        for (uint32_t level = best_level; level < 3; level++) {
            int r = try_level(c, best, level, &by);
            if (r == DONE) return true;
            if (r == STOP) break;
        }
        tried |= UINT64_C(1) << best_bit;
    }
}

void dispatch(arm_ctx *c, uint32_t domain) {
    for (int n = 0; rd(c, &c->arena->domain_waiting[domain]); n++) {
        if (n == GRANTS || c->granted == ARM_MAX_OUT || log_half_full(c)) {
            c->more = true;
            return;
        }
        if (!step(c, domain)) return;
    }
}

static int64_t dispatch_body(arm_ctx *c, const int64_t *args) {
    dispatch(c, (uint32_t)args[0]);
    return 0;
}

/* What a transaction had to leave, each step one of its own. With the table of results full the rest is due at once: the
 * caller takes the results and advances. */
void dispatch_rest(arm_ctx *c, int64_t now_ns, uint32_t domain) {
    int64_t freed = c->freed;
    int n = 0;
    do arm_run(c, dispatch_body, (int64_t[]){domain}, now_ns);
    while (c->more && c->io.n_granted < ARM_MAX_OUT && ++n < 64);
    if (c->more) c->io.next_due_ns = now_ns;
    c->freed = freed;
}

int64_t run_and_dispatch(arm_ctx *c, arm_body body, const int64_t *args, int64_t now_ns, uint32_t domain) {
    int64_t rc = arm_run(c, body, args, now_ns);
    if (c->more) dispatch_rest(c, now_ns, domain);
    return rc;
}

int64_t arm_advance(arm_ctx *c, int64_t now_ns) {
    ARM_IF_PRIVATE(c, arm_private_advance(c, now_ns));
    c->io.n_granted = c->io.n_wake = 0;
    c->io.next_due_ns = -1;
    for (uint32_t d = 0; d < ARM_DOMAINS; d++)
        if (c->arena->domain_first[d]) run_and_dispatch(c, dispatch_body, (int64_t[]){d}, now_ns, d);
    return c->io.n_granted;
}
