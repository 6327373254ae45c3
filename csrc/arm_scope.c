/* Scopes: what a provider closes or slows down at once, a model of a pool or a whole account. After a refusal a scope is
 * closed until the time that was named, and then runs with a gap between two starts, which doubles with each refusal (a
 * quarter more, if the provider named a time) and shrinks with each success until it no longer matters (multiplicative
 * decrease of the rate and probing increase; after Chiu and Jain 1989).
 *
 * A provider that counts in windows shows it: twice running the same few calls go through before it refuses. Then the
 * gap is what it was shown to take, a quarter longer (the time since the scope opened over the calls let through), and
 * shrinks below that only slowly. After QUIET successes without a refusal that is taken to be over. */
#include "arm_internal.h"

#define GAP_FIRST INT64_C(100000)
#define GAP_FREE (GAP_FIRST / 2)
#define GAP_GUESS INT64_C(2000000)
#define GAP_MOST INT64_C(60000000)
#define QUIET 24
#define FEW 8u

int64_t scope_open_at(arm_ctx *c, uint32_t i) {
    arm_scope_rec *s = scope(c, i);
    int64_t at = rdw(c, &s->until);
    if (rdw(c, &s->gap)) at = max64(at, rdw(c, &s->next));
    return at > c->now ? at : 0;
}

void scope_started(arm_ctx *c, uint32_t i) {
    arm_scope_rec *s = scope(c, i);
    int64_t last = (int64_t)atomic_load_explicit(&s->last, memory_order_relaxed);
    int64_t usual = (int64_t)atomic_load_explicit(&s->interval, memory_order_relaxed);
    if (last) atomic_store_explicit(&s->interval, (uint64_t)(usual + (c->now - last - usual) / 8), memory_order_relaxed);
    atomic_store_explicit(&s->last, (uint64_t)c->now, memory_order_relaxed);
    if (!rdw(c, &s->cut)) return;
    if (!rdw(c, &s->opened)) wrw(c, &s->opened, c->now);
    wr(c, &s->starts, rd(c, &s->starts) + 1);
    wrw(c, &s->next, c->now + rdw(c, &s->gap));
}

static void forget(arm_ctx *c, arm_scope_rec *s) {
    wrw(c, &s->gap, 0);
    wrw(c, &s->cut, 0);
    wrw(c, &s->opened, 0);
    wrw(c, &s->shown, 0);
    wr(c, &s->wins, 0);
    wr(c, &s->starts, 0);
    wr(c, &s->run, 0);
}

void scope_succeeded(arm_ctx *c, uint32_t i) {
    arm_scope_rec *s = scope(c, i);
    if (!rdw(c, &s->cut)) return; /* it was never refused */
    int64_t gap = rdw(c, &s->gap), shown = rdw(c, &s->shown);
    uint32_t wins = rd(c, &s->wins);
    if (wins >= QUIET) shown = 0;
    gap = gap > shown ? max64(gap - gap / 8 - 1, min64(gap - 1, shown)) : gap - gap / 64 - 1;
    if (gap < GAP_FREE) {
        forget(c, s);
        return;
    }
    wrw(c, &s->gap, gap);
    wr(c, &s->wins, wins + 1);
}

/* Calls that began before the last cut say nothing new: one cut a round trip. */
static int64_t penalise_body(arm_ctx *c, const int64_t *args) {
    arm_scope_rec *s = scope(c, (uint32_t)args[0]);
    int64_t until = args[1], since = args[3];
    if (until > rdw(c, &s->until)) wrw(c, &s->until, until);
    if (args[2] && since >= rdw(c, &s->cut)) {
        int64_t opened = rdw(c, &s->opened), gap = rdw(c, &s->gap);
        int64_t usual = (int64_t)atomic_load_explicit(&s->interval, memory_order_relaxed);
        int64_t named = args[2] == 2, base = gap ? gap : min64(GAP_GUESS, usual);
        int64_t guess = max64(GAP_FIRST, named ? base * 5 / 4 : base * 2);
        uint32_t run = opened ? rd(c, &s->starts) - 1 : 0; /* the last one was refused */
        if (run && run <= FEW && run == rd(c, &s->run)) {
            guess = max64(GAP_FIRST, (max64(until, c->now) - opened) / run * 5 / 4);
            wrw(c, &s->shown, guess);
        }
        wr(c, &s->run, run);
        wr(c, &s->starts, 0);
        gap = min64(GAP_MOST, guess);
        wrw(c, &s->gap, gap);
        wrw(c, &s->cut, c->now + 1);
        wrw(c, &s->opened, 0);
        wr(c, &s->wins, 0);
        wrw(c, &s->next, until > c->now ? until : c->now + gap);
    }
    arm_note(c, ARM_EV_PENALTY, 0, 0, rd(c, &s->pool), 0, until - c->now);
    return ARM_OK;
}

int arm_penalise(arm_ctx *c, int32_t i, int64_t until_ns, int32_t cut, int64_t since_ns, int64_t now_ns) {
    int64_t epoch = c->arena->config.epoch_ns;
    if (i < 0 || (uint32_t)i >= c->arena->config.scopes) return ARM_E_ARGUMENT;
    int64_t until = until_ns > epoch ? (until_ns - epoch + 999) / 1000 : 0;
    int64_t since = since_ns > epoch ? (since_ns - epoch) / 1000 : 0;
    return (int)arm_run(c, penalise_body, (int64_t[]){i, until, cut, since}, now_ns);
}

static int64_t reopen_body(arm_ctx *c, const int64_t *args) {
    arm_scope_rec *s = scope(c, (uint32_t)args[0]);
    wrw(c, &s->until, 0);
    forget(c, s);
    return ARM_OK;
}

int arm_reopen(arm_ctx *c, int32_t i, int64_t now_ns) {
    if (i < 0 || (uint32_t)i >= c->arena->config.scopes) return ARM_E_ARGUMENT;
    return (int)arm_run(c, reopen_body, (int64_t[]){i}, now_ns);
}

/* --- parking: in a pool of several models the tickets of a closed one step aside --- */

static cell *next_of(arm_ctx *c, uint32_t t) { return &ticket(c, t - 1)->qnext; }
static cell *prev_of(arm_ctx *c, uint32_t t) { return &ticket(c, t - 1)->qprev; }

/* One that was back at the front already goes before those that were not, in its order of arrival: the ticket after
 * which it goes. Few are: a scope sends back no more than can run at once. */
static uint32_t parks_after(arm_ctx *c, arm_scope_rec *s, uint32_t level, uint32_t t) {
    uint32_t last = 0, arrived_last = rd(c, &s->ptail[level]);
    if (!(rd(c, &ticket(c, t)->meta) & META_FRONT)) return arrived_last;
    int64_t arrival = rdw(c, &ticket(c, t)->arrival);
    for (uint32_t at = rd(c, &s->phead[level]); at; last = at, at = rd(c, next_of(c, at))) {
        if (!(rd(c, &ticket(c, at - 1)->meta) & META_FRONT) || rdw(c, &ticket(c, at - 1)->arrival) > arrival) return last;
    }
    return arrived_last;
}

void scope_park(arm_ctx *c, uint32_t t) {
    arm_ticket *k = ticket(c, t);
    queue_remove(c, t);
    uint32_t m = rd(c, &k->meta), p = meta_pool(m), l = meta_level(m), i = who_scope(rdw(c, &k->who));
    arm_scope_rec *s = scope(c, i);
    uint32_t last = parks_after(c, s, l, t), next = rd(c, last ? next_of(c, last) : &s->phead[l]);
    wr(c, &k->meta, m | META_PARKED);
    wr(c, &k->qnext, next);
    wr(c, &k->qprev, last);
    wr(c, last ? next_of(c, last) : &s->phead[l], t + 1);
    wr(c, next ? prev_of(c, next) : &s->ptail[l], t + 1);
    wr(c, &s->parked, rd(c, &s->parked) + 1);
    count_waiting(c, p, 1);
    if (!rd(c, &s->listed)) {
        wr(c, &s->listed, 1);
        wr(c, &s->link, rd(c, &pool(c, p)->parkers));
        wr(c, &pool(c, p)->parkers, i + 1);
    }
}

/* Takes a parked ticket off its list (it was cancelled, or its scope is open again). */
void scope_drop(arm_ctx *c, uint32_t t) {
    arm_ticket *k = ticket(c, t);
    uint32_t m = rd(c, &k->meta), l = meta_level(m);
    arm_scope_rec *s = scope(c, who_scope(rdw(c, &k->who)));
    uint32_t n = rd(c, &k->qnext), p = rd(c, &k->qprev);
    wr(c, p ? next_of(c, p) : &s->phead[l], n);
    wr(c, n ? prev_of(c, n) : &s->ptail[l], p);
    wr(c, &s->parked, rd(c, &s->parked) - 1);
    wr(c, &k->meta, m & ~META_PARKED);
    count_waiting(c, meta_pool(m), -1);
}

/* Back to the front of the queue, in the order in which they stepped aside, a bounded number a call; one at a time while
 * the scope is slowed. */
void scope_unpark(arm_ctx *c, uint32_t p) {
    cell *at = &pool(c, p)->parkers;
    int moved = 0;
    for (uint32_t looked = 0; rd(c, at) && looked < 16; looked++) {
        arm_scope_rec *s = scope(c, rd(c, at) - 1);
        int64_t open = scope_open_at(c, rd(c, at) - 1);
        for (int n = rdw(c, &s->gap) ? 1 : 4; !open && n && moved < 4; n--, moved++) {
            uint32_t t = rd(c, &s->phead[0]);
            if (!t) t = rd(c, &s->phead[1]);
            if (!t) t = rd(c, &s->phead[2]);
            if (!t) break;
            scope_drop(c, t - 1);
            queue_add(c, t - 1, true);
        }
        if (rd(c, &s->parked) == 0) {
            wr(c, at, rd(c, &s->link));
            wr(c, &s->listed, 0);
        } else {
            if (open) earliest(c, open);
            at = &s->link;
        }
    }
}

static int64_t scope_info_body(arm_ctx *c, const int64_t *args) {
    arm_scope_rec *s = scope(c, (uint32_t)args[0]);
    arm_scope_info *out = (arm_scope_info *)(uintptr_t)args[1];
    int64_t epoch = c->arena->config.epoch_ns;
    int64_t gap = rdw(c, &s->gap), pace = gap ? max64(1, 65536 * GAP_FREE / gap) : 65536;
    *out = (arm_scope_info){rdw(c, &s->until) * 1000 + epoch, gap, rdw(c, &s->next) * 1000 + epoch,
                            rdw(c, &s->cut) * 1000 + epoch, (int32_t)pace, (int32_t)rd(c, &s->parked),
                            (int32_t)rd(c, &s->pool) - 1};
    return ARM_OK;
}

int arm_scope_at(arm_ctx *c, int32_t i, arm_scope_info *out) {
    if (i < 0 || (uint32_t)i >= c->arena->config.scopes) return ARM_E_ARGUMENT;
    return (int)arm_run(c, scope_info_body, (int64_t[]){i, (int64_t)(uintptr_t)out}, 0);
}

int64_t arm_scope_count(arm_ctx *c) {
    return (int64_t)(uint32_t)atomic_load_explicit(&c->arena->n_scopes, memory_order_acquire);
}
