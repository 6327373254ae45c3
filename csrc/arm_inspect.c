/* Looking at the kernel without changing it: what is overdue, who holds and who waits, and whether all invariants hold. */
#include "arm_internal.h"

#include <stdio.h>

/* --- sweep --- */

static int64_t overdue_body(arm_ctx *c, const int64_t *args) {
    arm_ticket *k = ticket(c, (uint32_t)args[0]);
    int64_t state = rdw(c, &k->state);
    if (state_of(state) != ARM_RUNNING) return 0;
    int64_t run = rdw(c, &k->run_until), idle = rdw(c, &k->idle);
    int64_t beat = (int64_t)(atomic_load_explicit(&k->beat, memory_order_acquire) & WIDE_MASK);
    int reason = run && c->now >= run ? ARM_OVERDUE_RUN : 0;
    /* one that waits for its children makes progress through them */
    if (!reason && idle && !rd(c, &k->kids) && c->now - max64(rdw(c, &k->granted), beat) >= idle) reason = ARM_OVERDUE_IDLE;
    if (!reason) return 0;
    c->io.overdue[c->io.n_overdue] = make_handle((uint32_t)args[0], state);
    c->io.reason[c->io.n_overdue] = reason;
    return 1;
}

int64_t arm_sweep(arm_ctx *c, int64_t cursor, int64_t now_ns) {
    int64_t high = arm_ticket_count(c), end = cursor + 4096 < high ? cursor + 4096 : high;
    c->io.n_overdue = 0;
    if (cursor < 0) return ARM_E_ARGUMENT;
    for (; cursor < end && c->io.n_overdue < ARM_MAX_OUT; cursor++) {
        uint64_t w = atomic_load_explicit(&ticket(c, (uint32_t)cursor)->state, memory_order_acquire);
        if (state_of((int64_t)w) != ARM_RUNNING) continue;
        if (arm_run(c, overdue_body, (int64_t[]){cursor}, now_ns) == 1) c->io.n_overdue++;
    }
    return cursor < high ? cursor : 0;
}

/* --- info --- */

int64_t arm_ticket_count(arm_ctx *c) {
    return (int64_t)(uint32_t)atomic_load_explicit(&c->arena->high_ticket, memory_order_acquire);
}

static int64_t ns(arm_ctx *c, int64_t us) { return us * 1000 + c->arena->config.epoch_ns; }

static int64_t ticket_body(arm_ctx *c, const int64_t *args) {
    uint32_t t = (uint32_t)args[0];
    arm_ticket *k = ticket(c, t);
    arm_ticket_info *o = (arm_ticket_info *)(uintptr_t)args[1];
    int64_t state = rdw(c, &k->state), who = rdw(c, &k->who);
    uint32_t m = rd(c, &k->meta);
    int st;
    memset(o, 0, sizeof *o);
    o->state = state_of(state);
    if (o->state < ARM_WAITING) return ARM_OK;
    o->handle = make_handle(t, state);
    o->submitted_ns = ns(c, rdw(c, &k->submitted));
    o->granted_ns = o->state == ARM_WAITING ? -1 : ns(c, rdw(c, &k->granted));
    o->heartbeat_ns = ns(c, (int64_t)(atomic_load_explicit(&k->beat, memory_order_acquire) & WIDE_MASK));
    uint32_t up = rd(c, &k->parent);
    if (alive(c, up, rd(c, &k->parent_gen), &st)) o->parent = make_handle(up - 1, rdw(c, &ticket(c, up - 1)->state));
    o->tokens = rd(c, &k->tokens);
    o->memory = rdw(c, &k->memory);
    o->pool = (int32_t)meta_pool(m);
    o->klass = (int32_t)meta_class(m);
    o->level = (int32_t)meta_level(m);
    o->agent = (int32_t)who_agent(who);
    o->tenant = (int32_t)rd(c, &agent(c, who_agent(who))->tenant);
    o->owner = (int32_t)who_owner(who);
    o->scope = (int32_t)who_scope(who);
    o->passes = (int32_t)rd(c, &k->passes);
    o->loan = (m & META_LOAN) != 0;
    o->kids = (int32_t)rd(c, &k->kids);
    return ARM_OK;
}

int arm_ticket_at(arm_ctx *c, int64_t index, arm_ticket_info *out) {
    if (index < 0 || index >= c->arena->config.tickets) return ARM_E_ARGUMENT;
    return (int)arm_run(c, ticket_body, (int64_t[]){index, (int64_t)(uintptr_t)out}, 0);
}

static int64_t pool_body(arm_ctx *c, const int64_t *args) {
    arm_pool *p = pool(c, (uint32_t)args[0]);
    arm_pool_info *o = (arm_pool_info *)(uintptr_t)args[1];
    o->lanes = (int32_t)p->config.lanes;
    o->used = (int32_t)rd(c, &p->used);
    o->dead = (int32_t)rd(c, &p->dead);
    o->zombies = (int32_t)p->config.zombies;
    o->waiting = (int32_t)rd(c, &p->waiting);
    for (int i = 0; i < 3; i++) o->level_start[i] = rdw(c, &p->level[i].vtime);
    o->ewma_us = (int64_t)atomic_load_explicit(&p->ewma, memory_order_relaxed);
    return ARM_OK;
}

int arm_pool_at(arm_ctx *c, int32_t p, arm_pool_info *out) {
    if (p < 0 || (uint32_t)p >= c->arena->config.pools) return ARM_E_ARGUMENT;
    return (int)arm_run(c, pool_body, (int64_t[]){p, (int64_t)(uintptr_t)out}, 0);
}

static int64_t demotion_body(arm_ctx *c, const int64_t *args) {
    return (int64_t)queue_level(c, (uint32_t)args[0], (uint32_t)args[1], ARM_MLFQ, 0) - args[1];
}

/* Levels that the agent's work of a class is below its class now. */
int arm_agent_demotion(arm_ctx *c, int64_t a, int32_t klass, int64_t now_ns) {
    a &= 0xffffff;
    if (a >= c->arena->config.agents || klass < 0 || klass > 2) return ARM_E_ARGUMENT;
    return (int)arm_run(c, demotion_body, (int64_t[]){a, klass}, now_ns);
}

static int64_t policy_body(arm_ctx *c, const int64_t *args) {
    wr(c, &pool(c, (uint32_t)args[0])->policy, (uint32_t)args[1]);
    return ARM_OK;
}

int arm_set_policy(arm_ctx *c, int32_t p, uint32_t policy) {
    if (p < 0 || (uint32_t)p >= c->arena->config.pools || policy > ARM_CUSTOM) return ARM_E_ARGUMENT;
    return (int)arm_run(c, policy_body, (int64_t[]){p, policy}, 0);
}

/* --- invariants --- */

#define REQUIRE(what, ...)                                                                                             \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            snprintf((char *)(uintptr_t)args[0], (size_t)args[1], __VA_ARGS__);                                        \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int64_t check_pool(arm_ctx *c, const int64_t *args, uint32_t p, uint32_t high) {
    arm_pool *pl = pool(c, p);
    uint32_t running = 0, loans = 0, dead = 0, waiting = 0, parked = 0, walked = 0;
    for (uint32_t t = 0; t < high; t++) {
        arm_ticket *k = ticket(c, t);
        int st = state_of(rdw(c, &k->state));
        uint32_t m = rd(c, &k->meta);
        if (st < ARM_WAITING || meta_pool(m) != p) continue;
        running += st == ARM_RUNNING;
        loans += st == ARM_RUNNING && (m & META_LOAN);
        dead += st == ARM_ZOMBIE;
        waiting += st == ARM_WAITING;
        parked += st == ARM_WAITING && (m & META_PARKED);
    }
    REQUIRE(rd(c, &pl->used) == running - loans, "pool %u: %u lanes used, %u tickets run, %u of them on loan", p,
            rd(c, &pl->used), running, loans);
    REQUIRE(rd(c, &pl->used) <= pl->config.lanes, "pool %u: %u of %u lanes used", p, rd(c, &pl->used), pl->config.lanes);
    REQUIRE(rd(c, &pl->dead) == dead, "pool %u: %u zombies counted, %u found", p, rd(c, &pl->dead), dead);
    REQUIRE(rd(c, &pl->waiting) == waiting, "pool %u: %u waiting counted, %u found", p, rd(c, &pl->waiting), waiting);
    for (uint32_t level = 0; level < 3; level++) {
        uint32_t here = 0;
        int64_t last_start = -1;
        for (uint32_t tf = rd(c, &pl->level[level].head[0]); tf; tf = rd(c, &flow(c, tf - 1)->tower[0])) {
            int64_t start = rdw(c, &flow(c, tf - 1)->start), last = -1;
            REQUIRE(start >= last_start, "pool %u level %u: tenants out of order", p, level);
            last_start = start;
            for (uint32_t af = rd(c, &flow(c, tf - 1)->child[0]); af; af = rd(c, &flow(c, af - 1)->tower[0])) {
                REQUIRE(rdw(c, &flow(c, af - 1)->start) >= last, "pool %u level %u: agents out of order", p, level);
                last = rdw(c, &flow(c, af - 1)->start);
                for (int q = 0; q < 2; q++)
                    for (uint32_t t = rd(c, q ? &flow(c, af - 1)->qhead : &flow(c, af - 1)->fhead); t;
                         t = rd(c, &ticket(c, t - 1)->qnext)) {
                        REQUIRE(state_of(rdw(c, &ticket(c, t - 1)->state)) == ARM_WAITING,
                                "pool %u level %u: ticket %u is queued in state %d", p, level, t - 1,
                                state_of(rdw(c, &ticket(c, t - 1)->state)));
                        here++;
                    }
            }
        }
        walked += here;
    }
    REQUIRE(walked + parked == waiting, "pool %u: %u queued and %u parked of %u waiting", p, walked, parked, waiting);
    return 0;
}

static int64_t check_limits(arm_ctx *c, const int64_t *args) {
    for (uint32_t i = 0; i < c->arena->config.limits; i++) {
        arm_limit *l = limit(c, i);
        if (!l->config.amount || l->config.shape != ARM_ROLLING) continue;
        int64_t sum = 0, last = -1;
        for (uint32_t e = rd(c, &l->tail); e != rd(c, &l->head); e++) {
            cell *at = (cell *)(c->base + l->ring) + (uint64_t)(e & (l->config.ring - 1)) * 2;
            REQUIRE(rdw(c, &at[0]) >= last, "limit %u: window out of order", i);
            last = rdw(c, &at[0]);
            sum += rd(c, &at[1]);
        }
        REQUIRE(sum == rdw(c, &l->sum), "limit %u: window holds %lld, counted %lld", i, (long long)sum,
                (long long)rdw(c, &l->sum));
    }
    return 0;
}

static int64_t check_body(arm_ctx *c, const int64_t *args) {
    uint32_t high = rd(c, &c->arena->high_ticket);
    for (uint32_t p = 0; p < c->arena->config.pools; p++)
        if (pool(c, p)->config.lanes && check_pool(c, args, p, high)) return 1;
    return check_limits(c, args);
}

int arm_check(arm_ctx *c, char *why, size_t room) {
    if (!why || !room) return ARM_E_ARGUMENT;
    why[0] = 0;
    return (int)arm_run(c, check_body, (int64_t[]){(int64_t)(uintptr_t)why, (int64_t)room}, 0);
}
