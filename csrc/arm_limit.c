/* Limits: exact rolling windows, token buckets and gauges; all of one admission are taken together or not at all. */
#include "arm_internal.h"

/* What the ticket takes of the i-th limit of its pool. */
static int64_t need_of(arm_ctx *c, uint32_t t, const arm_pool_config *f, uint32_t i) {
    const arm_limit *l = limit(c, f->limits[i]);
    if (f->takes[i]) return f->takes[i];
    if (l->config.unit == ARM_REQUESTS) return 1;
    return l->config.unit == ARM_TOKENS ? rd(c, &ticket(c, t)->tokens) : rdw(c, &ticket(c, t)->memory);
}

static cell *ring_at(arm_ctx *c, arm_limit *l, uint32_t position) {
    return (cell *)(c->base + l->ring) + (uint64_t)(position & (l->config.ring - 1)) * 2;
}

/* Rolling window: forget what has left it. A grant at microsecond s may lie anywhere in [s, s + 1), hence the + 1. */
static int64_t rolling_sum(arm_ctx *c, arm_limit *l) {
    uint32_t tail = rd(c, &l->tail), head = rd(c, &l->head);
    int64_t sum = rdw(c, &l->sum);
    if (tail == head) return sum;
    uint32_t from = tail;
    while (tail != head) {
        cell *e = ring_at(c, l, tail);
        if (rdw(c, &e[0]) + l->config.window_us + 1 > c->now) break;
        sum -= rd(c, &e[1]);
        tail++;
    }
    if (tail != from) {
        wr(c, &l->tail, tail);
        wrw(c, &l->sum, sum);
    }
    return sum;
}

static int64_t bucket_level(arm_ctx *c, arm_limit *l) {
    int64_t level = rdw(c, &l->level) - BIAS, passed = c->now - rdw(c, &l->last);
    if (passed <= 0 || level >= l->full) return level;
    if (passed > (level >= 0 ? l->fill_us : l->rise_us)) return l->full;
    return min64(l->full, level + passed * l->num);
}

/* Tokens as units of a bucket; a debt deeper than a cell can hold is as deep as it can. */
static int64_t units(const arm_limit *l, int64_t tokens) {
    return tokens > 2 * BIAS / l->den ? 2 * BIAS : tokens * l->den;
}

static void bucket_set(arm_ctx *c, arm_limit *l, int64_t level) {
    wrw(c, &l->level, max64(1 - BIAS, min64(l->full, level)) + BIAS);
    if (c->now > rdw(c, &l->last)) wrw(c, &l->last, c->now);
}

/* More than the limit can ever give at once: admitted, if at all (`oversize_debt`), alone at a full limit. */
static bool room(arm_ctx *c, arm_limit *l, int64_t need) {
    bool oversized = need > l->most;
    if (l->config.shape == ARM_ROLLING) {
        int64_t sum = rolling_sum(c, l);
        return oversized ? sum == 0 : sum + need <= l->config.amount;
    }
    if (l->config.shape == ARM_GAUGE) return rdw(c, &l->level) + need <= l->config.amount;
    return bucket_level(c, l) >= min64(need, l->most) * l->den;
}

static int64_t due(arm_ctx *c, arm_limit *l, int64_t need) {
    bool oversized = need > l->most;
    if (l->config.shape == ARM_GAUGE) return -1;
    if (l->config.shape == ARM_BUCKET) {
        int64_t lack = min64(need, l->most) * l->den - bucket_level(c, l);
        return lack <= 0 ? c->now : max64(c->now, rdw(c, &l->last)) + (lack + l->num - 1) / l->num;
    }
    int64_t sum = rolling_sum(c, l), target = oversized ? 0 : l->config.amount - need;
    uint32_t i = rd(c, &l->tail), head = rd(c, &l->head);
    int64_t at = c->now;
    for (; i != head && sum > target; i++) {
        cell *e = ring_at(c, l, i);
        sum -= rd(c, &e[1]);
        at = rdw(c, &e[0]) + l->config.window_us + 1;
    }
    return max64(at, c->now);
}

/* A window has been brought up to date already. */
static uint32_t take(arm_ctx *c, arm_limit *l, int64_t need) {
    if (l->config.shape == ARM_GAUGE) {
        wrw(c, &l->level, rdw(c, &l->level) + need);
        return 0;
    }
    if (l->config.shape == ARM_BUCKET) {
        bucket_set(c, l, bucket_level(c, l) - units(l, need));
        return 0;
    }
    int64_t at = c->now;
    uint32_t head = rd(c, &l->head), tail = rd(c, &l->tail);
    if (head != tail) at = max64(at, rdw(c, &ring_at(c, l, head - 1)[0]));
    wrw(c, &l->sum, rdw(c, &l->sum) + need);
    if (head - tail == l->config.ring) { /* full of small or refunded entries: the newest one stands for both */
        cell *e = ring_at(c, l, head - 1);
        wrw(c, &e[0], at);
        wr(c, &e[1], rd(c, &e[1]) + (uint32_t)need);
        return head - 1;
    }
    cell *e = ring_at(c, l, head);
    wrw(c, &e[0], at);
    wr(c, &e[1], (uint32_t)need);
    wr(c, &l->head, head + 1);
    return head;
}

/* What was reserved turned out to be `real`. In a rolling window the entry keeps its time; one that has left the window
 * needs no correction, unless the call used more, which is then entered now. */
static void correct(arm_ctx *c, arm_limit *l, uint32_t stamp, int64_t reserved, int64_t real) {
    if (l->config.shape == ARM_GAUGE) {
        wrw(c, &l->level, max64(0, rdw(c, &l->level) - reserved));
        return;
    }
    if (reserved == real) return;
    if (l->config.shape == ARM_BUCKET) {
        bucket_set(c, l, bucket_level(c, l) + units(l, reserved) - units(l, real));
        return;
    }
    int64_t sum = rolling_sum(c, l);
    uint32_t tail = rd(c, &l->tail), head = rd(c, &l->head);
    if (stamp - tail >= head - tail) {
        if (real > reserved) take(c, l, real - reserved);
        return;
    }
    cell *e = ring_at(c, l, stamp);
    int64_t amount = (int64_t)rd(c, &e[1]) + real - reserved;
    if (amount < 0) amount = 0;
    wrw(c, &l->sum, sum + amount - rd(c, &e[1]));
    wr(c, &e[1], (uint32_t)amount);
    if (amount == 0 && stamp == head - 1) wr(c, &l->head, head - 1);
}

/* Whether a lease waits for the ticket's call, and with that lease all that it holds. */
bool is_nested(arm_ctx *c, uint32_t t) {
    int state;
    return alive(c, rd(c, &ticket(c, t)->parent), rd(c, &ticket(c, t)->parent_gen), &state) && state >= ARM_RUNNING;
}

static bool saved_for_other(arm_ctx *c, arm_limit *l, uint32_t t);

/* Whether the ticket waits for what leases hold, or will hold once another has got what is saved for it. When that is
 * given back nobody knows, if it ever is. */
bool lacks_gauge(arm_ctx *c, uint32_t t) {
    const arm_pool_config *f = &pool(c, meta_pool(rd(c, &ticket(c, t)->meta)))->config;
    for (uint32_t i = 0; i < f->nlimits; i++) {
        arm_limit *l = limit(c, f->limits[i]);
        int64_t need = need_of(c, t, f, i);
        if (need && l->config.shape == ARM_GAUGE && (saved_for_other(c, l, t) || !room(c, l, need))) return true;
    }
    return false;
}

/* The ticket for which the limit is saved up, + 1. 0 also while it could not use what is saved: it is not the first of
 * its pool any more, has no lane, its scope is closed, or (of a rate, which comes back by itself) leases hold what
 * else it needs. Waiting for one that itself waits would be for ever. */
static uint32_t saver_of(arm_ctx *c, arm_limit *l) {
    uint32_t s = rd(c, &l->saver);
    if (!s) return 0;
    arm_ticket *k = ticket(c, s - 1);
    int64_t state = rdw(c, &k->state);
    if (state_of(state) != ARM_WAITING || (uint32_t)(state >> 4) != rd(c, &l->saver_gen)) return 0;
    uint32_t meta = rd(c, &k->meta);
    arm_pool *p = pool(c, meta_pool(meta));
    if ((meta & META_PARKED) || !lane_free(c, p) || queue_first(c, p) != s) return 0;
    if (l->config.shape != ARM_GAUGE && lacks_gauge(c, s - 1)) return 0;
    if (p->config.account_scope >= 0 && scope_open_at(c, (uint32_t)p->config.account_scope)) return 0;
    return scope_open_at(c, who_scope(rdw(c, &k->who))) ? 0 : s;
}

/* Whether the limit is saved up for another ticket, one of a more important level or that came earlier. Since that is
 * an order, tickets never wait for each other's savings in a circle. What leases hold is not saved from a nested call:
 * the one it is saved for may wait for the very lease that waits for this call. */
static bool saved_for_other(arm_ctx *c, arm_limit *l, uint32_t t) {
    uint32_t s = saver_of(c, l);
    if (!s || s - 1 == t || (l->config.shape == ARM_GAUGE && is_nested(c, t))) return false;
    uint32_t theirs = meta_level(rd(c, &ticket(c, s - 1)->meta)), ours = meta_level(rd(c, &ticket(c, t)->meta));
    return theirs < ours || (theirs == ours && rdw(c, &ticket(c, s - 1)->arrival) < rdw(c, &ticket(c, t)->arrival));
}

bool limits_fit(arm_ctx *c, uint32_t t, int *lacking) {
    const arm_pool_config *f = &pool(c, meta_pool(rd(c, &ticket(c, t)->meta)))->config;
    for (uint32_t i = 0; i < f->nlimits; i++) {
        arm_limit *l = limit(c, f->limits[i]);
        int64_t need = need_of(c, t, f, i);
        if (need && (saved_for_other(c, l, t) || !room(c, l, need))) {
            if (lacking) *lacking = (int)i;
            return false;
        }
    }
    return true;
}

void limits_take(arm_ctx *c, uint32_t t) {
    arm_ticket *k = ticket(c, t);
    const arm_pool_config *f = &pool(c, meta_pool(rd(c, &k->meta)))->config;
    for (uint32_t i = 0; i < f->nlimits; i++) {
        arm_limit *l = limit(c, f->limits[i]);
        int64_t need = need_of(c, t, f, i);
        uint32_t stamp = need ? take(c, l, need) : 0;
        if (need && l->config.shape == ARM_ROLLING) wr(c, &k->stamp[i], stamp);
        if (rd(c, &l->saver) == t + 1) wr(c, &l->saver, 0);
    }
}

void limits_settle(arm_ctx *c, uint32_t t, int64_t tokens, bool refund) {
    arm_ticket *k = ticket(c, t);
    const arm_pool_config *f = &pool(c, meta_pool(rd(c, &k->meta)))->config;
    for (uint32_t i = 0; i < f->nlimits; i++) {
        arm_limit *l = limit(c, f->limits[i]);
        int64_t reserved = need_of(c, t, f, i), real = reserved;
        if (refund) real = 0;
        else if (l->config.unit == ARM_TOKENS && !f->takes[i]) real = tokens;
        if (reserved == 0 && real > 0 && l->config.shape == ARM_ROLLING) {
            rolling_sum(c, l);
            take(c, l, real);
        } else if (reserved || real) {
            correct(c, l, l->config.shape == ARM_ROLLING ? rd(c, &k->stamp[i]) : 0, reserved, real);
        }
    }
}

int64_t limits_due(arm_ctx *c, uint32_t t) {
    const arm_pool_config *f = &pool(c, meta_pool(rd(c, &ticket(c, t)->meta)))->config;
    int64_t at = -1; /* also when all there is lacking is saved up for another: its grant comes first */
    for (uint32_t i = 0; i < f->nlimits; i++) {
        arm_limit *l = limit(c, f->limits[i]);
        int64_t need = need_of(c, t, f, i);
        if (!need || room(c, l, need)) continue;
        int64_t d = due(c, l, need);
        if (d < 0) return -1; /* only a settle can help */
        at = max64(at, d);
    }
    return at;
}

int limits_too_large(arm_ctx *c, arm_pool *p, int64_t tokens, int64_t memory) {
    for (uint32_t i = 0; i < p->config.nlimits; i++) {
        arm_limit *l = limit(c, p->config.limits[i]);
        int64_t need = l->config.unit == ARM_REQUESTS ? 1 : l->config.unit == ARM_TOKENS ? tokens : memory;
        if (p->config.takes[i]) need = p->config.takes[i];
        if (need > l->most && (l->config.shape == ARM_GAUGE || !p->config.oversize_debt)) return (int)i;
    }
    return -1;
}

void limits_save(arm_ctx *c, uint32_t t) {
    const arm_pool_config *f = &pool(c, meta_pool(rd(c, &ticket(c, t)->meta)))->config;
    for (uint32_t i = 0; i < f->nlimits; i++) {
        arm_limit *l = limit(c, f->limits[i]);
        int64_t need = need_of(c, t, f, i);
        if (!need || saved_for_other(c, l, t)) continue;
        if (rd(c, &l->saver) == t + 1 && rd(c, &l->saver_gen) == (uint32_t)(rdw(c, &ticket(c, t)->state) >> 4)) continue;
        wr(c, &l->saver, t + 1);
        wr(c, &l->saver_gen, (uint32_t)(rdw(c, &ticket(c, t)->state) >> 4));
    }
}

/* The largest part, in 1/65536, of one of its pool's gauges of memory that the ticket takes. */
int64_t limits_memory(arm_ctx *c, uint32_t t) {
    const arm_pool_config *f = &pool(c, meta_pool(rd(c, &ticket(c, t)->meta)))->config;
    int64_t part = 0;
    for (uint32_t i = 0; i < f->nlimits; i++) {
        const arm_limit_config *l = &limit(c, f->limits[i])->config;
        if (l->unit == ARM_MEMORY && l->shape == ARM_GAUGE) part = max64(part, (need_of(c, t, f, i) << 16) / l->amount);
    }
    return part;
}

static int64_t try_body(arm_ctx *c, const int64_t *args) {
    arm_limit *l = limit(c, (uint32_t)args[0]);
    if (args[1] > l->most) return ARM_E_TOO_LARGE;
    if (saver_of(c, l)) return 0;
    if (!room(c, l, args[1])) {
        int64_t d = due(c, l, args[1]);
        if (d >= 0) earliest(c, d);
        return 0;
    }
    take(c, l, args[1]);
    return 1;
}

int64_t arm_try(arm_ctx *c, int64_t index, int64_t amount, int64_t now_ns) {
    ARM_IF_PRIVATE(c, arm_private_try(c, index, amount, now_ns));
    if (index < 0 || index >= c->arena->config.limits || amount <= 0 || amount > UINT32_MAX) return ARM_E_ARGUMENT;
    c->io.next_due_ns = -1;
    return arm_run(c, try_body, (int64_t[]){index, amount}, now_ns);
}

static int64_t correct_body(arm_ctx *c, const int64_t *args) {
    arm_limit *l = limit(c, (uint32_t)args[0]);
    if (l->config.shape == ARM_GAUGE) return ARM_E_ARGUMENT;
    if (l->config.shape == ARM_BUCKET) {
        bucket_set(c, l, min64(args[1], l->config.burst) * l->den);
        return ARM_OK;
    }
    int64_t unseen = l->config.amount - args[1] - rolling_sum(c, l);
    if (unseen > 0) take(c, l, unseen);
    return ARM_OK;
}

int arm_correct(arm_ctx *c, int64_t index, int64_t remaining, int64_t now_ns) {
    if (index < 0 || index >= c->arena->config.limits || remaining < 0 || remaining > INT64_C(2000000000))
        return ARM_E_ARGUMENT;
    return (int)arm_run(c, correct_body, (int64_t[]){index, remaining}, now_ns);
}

static int64_t limit_body(arm_ctx *c, const int64_t *args) {
    arm_limit *l = limit(c, (uint32_t)args[0]);
    arm_limit_info *out = (arm_limit_info *)(uintptr_t)args[1];
    int64_t level = l->config.amount;
    if (l->config.shape == ARM_ROLLING) level -= rolling_sum(c, l);
    else if (l->config.shape == ARM_GAUGE) level -= rdw(c, &l->level);
    else level = bucket_level(c, l) / l->den;
    *out = (arm_limit_info){level, l->most, l->config.amount, l->config.window_us, (int32_t)l->config.unit,
                            (int32_t)l->config.shape};
    return ARM_OK;
}

int arm_limit_at(arm_ctx *c, int64_t index, int64_t now_ns, arm_limit_info *out) {
    if (index < 0 || index >= c->arena->config.limits) return ARM_E_ARGUMENT;
    return (int)arm_run(c, limit_body, (int64_t[]){index, (int64_t)(uintptr_t)out}, now_ns);
}
