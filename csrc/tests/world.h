/* What the drivers share: an arena to fight over, workers that make random calls, and a ledger that notices a grant
 * made twice. All of it lives in memory that survives fork and the death of any process. */
#ifndef ARM_TEST_WORLD_H
#define ARM_TEST_WORLD_H
#include "arm.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TICKETS = 512, OWNERS = 12, POOLS = 2, SCOPES = 4, LIMITS = 4, LANES = 6, MEMORY = 200, LIVE = 24 };

#define FAIL(...)                                                                                                      \
    do {                                                                                                               \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                                \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fprintf(stderr, "\n");                                                                                         \
        fflush(stderr);                                                                                                \
        _exit(1);                                                                                                      \
    } while (0)

static inline void must(int64_t rc, const char *what) {
    if (rc < 0) FAIL("%s: %lld", what, (long long)rc);
}

#include "kv_world.h"

typedef struct {
    _Atomic int64_t clock;
    _Atomic int64_t last_grant[TICKETS]; /* of each slot */
    _Atomic long grants, ends;
    _Atomic int stop;
    _Atomic int dead[OWNERS]; /* pid to be buried, 0 if none */
    kv_ledger kv;
} ledger;

typedef struct {
    char *arena;
    size_t size;
    ledger *book;
} world;

typedef struct {
    world *w;
    arm_ctx *ctx;
    arm_io *io;
    uint64_t seed;
    int live_max, nwait, nrun;
    int64_t wait[LIVE], run[LIVE], agent[6];
    int32_t scope[SCOPES];
    const char *doing;
    kv_worker kv;
} worker;

static inline uint32_t draw(worker *k, uint32_t below) { /* splitmix64 */
    uint64_t z = (k->seed += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

static inline int64_t tick(worker *k, int64_t ns) { return atomic_fetch_add(&k->w->book->clock, ns) + ns; }

static inline void *shared_memory(size_t size) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) FAIL("no memory");
    return p;
}

static inline world world_make(void) {
    arm_config f = {.tickets = TICKETS, .agents = 16, .tenants = 8, .pools = POOLS, .limits = LIMITS, .scopes = SCOPES + 2,
                    .owners = OWNERS, .events = 64, .ring_entries = 2048, .backfill_passes = 4, .backfill_us = 200,
                    .age_us = 300, .boost_us = 2000, .quanta_us = {100, 300, 0}, .quanta_tokens = {400, 1000, 0}, .shared = 1,
                    .kv_pools = 1, .kv_blocks = BLOCKS, .kv_chains = CHAINS};
    world w = {.size = arm_size(&f), .book = shared_memory(sizeof(ledger))};
    w.arena = shared_memory(w.size);
    atomic_store(&w.book->clock, 1000000);
    must(arm_init(w.arena, w.size, &f), "init");
    arm_limit_config limits[LIMITS] = {
        {.unit = ARM_REQUESTS, .shape = ARM_ROLLING, .amount = 150, .window_us = 500, .ring = 512},
        {.unit = ARM_TOKENS, .shape = ARM_BUCKET, .amount = 40000, .window_us = 1000, .burst = 1500},
        {.unit = ARM_MEMORY, .shape = ARM_GAUGE, .amount = MEMORY},
        {.unit = ARM_TOKENS, .shape = ARM_ROLLING, .amount = 20000, .window_us = 700, .ring = 1024}};
    for (uint32_t i = 0; i < LIMITS; i++) must(arm_set_limit(w.arena, i, &limits[i]), "set a limit");
    arm_pool_config pools[POOLS] = {{.lanes = LANES, .zombies = 2, .max_queued = 200, .policy = ARM_MLFQ, .nlimits = 3,
                                     .limits = {0, 1, 2}, .account_scope = -1, .request_cost_us = 20, .token_cost_q8 = 64},
                                    {.lanes = LANES, .zombies = 1, .max_queued = 200, .policy = ARM_DRF, .nlimits = 2,
                                     .limits = {0, 3}, .account_scope = SCOPES - 1, .request_cost_us = 20}};
    for (uint32_t i = 0; i < POOLS; i++) must(arm_set_pool(w.arena, i, &pools[i]), "set a pool");
    must(arm_set_kv(w.arena, 0, &(arm_kv_config){.blocks = BLOCKS, .block_tokens = BLOCK_TOKENS}), "set a block pool");
    return w;
}

static inline void world_free(world *w) {
    munmap(w->arena, w->size);
    munmap(w->book, sizeof *w->book);
}

static inline worker worker_join(world *w, uint64_t seed, int live_max) {
    worker k = {.w = w, .seed = seed * 7919 + 1, .live_max = live_max, .doing = "join"};
    k.ctx = aligned_alloc(64, (arm_ctx_size() + 63) & ~(size_t)63);
    must(arm_join(k.ctx, w->arena, w->size, getpid(), 1, 0), "join");
    k.io = arm_io_of(k.ctx);
    k.kv.book = &w->book->kv;
    k.kv.row = arm_owner_slot(k.ctx);
    kv_forget(k.kv.book, k.kv.row);
    for (int i = 0; i < 6; i++) {
        char name[16];
        int64_t tenant = arm_tenant(k.ctx, name, (size_t)snprintf(name, sizeof name, "tenant %d", i % 3), i % 3 == 2 ? 2048 : 0);
        must(tenant, "tenant");
        k.agent[i] = arm_agent(k.ctx, name, (size_t)snprintf(name, sizeof name, "agent %d", i), (uint32_t)tenant, 0);
        must(k.agent[i], "agent");
        must(arm_kv_quota(k.ctx, 0, 0, k.agent[i], i == 1 ? QUOTA : 0), "quota");
    }
    for (int i = 0; i < SCOPES; i++) { /* two models in pool 0, one in pool 1, its account */
        char name[16];
        k.scope[i] = (int32_t)arm_scope(k.ctx, name, (size_t)snprintf(name, sizeof name, "scope %d", i), i < 2 ? 0 : i == 2 ? 1 : -1);
        must(k.scope[i], "scope");
    }
    return k;
}

static inline int at_of(const int64_t *list, int n, int64_t handle) {
    for (int i = 0; i < n; i++)
        if (list[i] == handle) return i;
    return -1;
}

static inline void runs_now(worker *k, int64_t handle) {
    int64_t before = atomic_exchange(&k->w->book->last_grant[handle & 0xffffff], handle);
    if (before >= handle) FAIL("%s: handle %llx granted after %llx of the same slot", k->doing, (long long)handle, (long long)before);
    atomic_fetch_add(&k->w->book->grants, 1);
    k->run[k->nrun++] = handle;
}

/* Grants that the last call delivered. */
static inline void collect(worker *k) {
    for (int i = 0; i < k->io->n_granted; i++) {
        int64_t handle = k->io->granted[i];
        int at = at_of(k->wait, k->nwait, handle);
        if (at < 0) FAIL("%s: a grant of %llx, which does not wait", k->doing, (long long)handle);
        k->wait[at] = k->wait[--k->nwait];
        runs_now(k, handle);
    }
    k->io->n_granted = 0;
}

static inline void submit(worker *k) {
    uint32_t pool = draw(k, POOLS), flags = draw(k, 10) == 0 ? ARM_F_TRY : draw(k, 10) == 0 ? ARM_F_RESUMED : 0;
    int64_t agent = k->agent[draw(k, 6)], scope = pool ? k->scope[2] : k->scope[draw(k, 2)];
    k->io->req = (arm_request){.memory = draw(k, 25), .idle_us = draw(k, 4) ? 0 : 1 + draw(k, 60), .run_us = draw(k, 4) ? 0 : 1 + draw(k, 200)};
    if (k->nrun && draw(k, 3) == 0) k->io->req.parent = k->run[draw(k, (uint32_t)k->nrun)];
    int64_t who = pool | draw(k, 3) << 10 | flags << 12 | (agent & 0xffffff) << 16 | scope << 40;
    k->doing = "submit";
    int64_t rc = arm_submit(k->ctx, who, draw(k, 200), tick(k, 1000));
    if (rc < 0 && rc != ARM_E_QUEUE && rc != ARM_E_FULL) FAIL("submit: %lld", (long long)rc);
    if (rc >= 0 && !(rc & 1)) k->wait[k->nwait++] = rc >> 1;
    if (rc >= 0 && rc & 1) runs_now(k, rc >> 1);
    collect(k);
}

static inline void settle(worker *k, int at) {
    int64_t handle = k->run[at], how[3] = {ARM_DONE, ARM_FAILED, ARM_REFUND};
    k->run[at] = k->run[--k->nrun];
    k->doing = "settle";
    int64_t rc = arm_settle(k->ctx, handle, how[draw(k, 3)] | (int64_t)draw(k, 250) << 2, tick(k, 1000));
    if (rc < 0) FAIL("settle of a running ticket: %lld", (long long)rc);
    atomic_fetch_add(&k->w->book->ends, 1);
    collect(k);
    if (draw(k, 20) == 0) { /* late, by an old owner */
        rc = arm_settle(k->ctx, handle, ARM_DONE, tick(k, 0));
        if (rc != ARM_E_STALE) FAIL("a second settle: %lld", (long long)rc);
    }
}

static inline void cancel(worker *k, int at) {
    int64_t handle = k->wait[at];
    k->doing = "cancel";
    int64_t rc = arm_cancel(k->ctx, handle, tick(k, 1000));
    if (rc >= 0) {
        k->wait[at] = k->wait[--k->nwait];
        if (arm_heartbeat(k->ctx, handle, tick(k, 0)) != ARM_E_STALE) FAIL("a cancelled ticket lives");
    } else if (rc != ARM_E_STATE) { /* granted by another: poll will tell */
        FAIL("cancel of a waiting ticket: %lld", (long long)rc);
    }
    collect(k);
}

/* Whatever is overdue, whoever holds it, becomes a zombie. */
static inline void sweep(worker *k) {
    k->doing = "sweep";
    must(arm_sweep(k->ctx, 0, tick(k, 1000)), "sweep");
    int n = k->io->n_overdue;
    int64_t overdue[ARM_MAX_OUT];
    memcpy(overdue, k->io->overdue, sizeof overdue);
    for (int i = 0; i < n; i++) {
        int64_t rc = arm_reap(k->ctx, overdue[i], tick(k, 1000));
        if (rc < 0 && rc != ARM_E_STALE) FAIL("reap: %lld", (long long)rc);
        collect(k);
    }
}

static inline void poll_mail(worker *k) {
    k->doing = "poll";
    must(arm_poll(k->ctx), "poll");
    collect(k);
}

static inline void advance_time(worker *k, int64_t ns) {
    k->doing = "advance";
    must(arm_advance(k->ctx, tick(k, ns)), "advance");
    collect(k);
}

static inline void step_of_work(worker *k) {
    uint32_t what = draw(k, 100);
    int64_t now = tick(k, 300);
    if (draw(k, 3) == 0) {
        k->doing = "kv";
        kv_step(k->ctx, &k->kv, k->agent[draw(k, 6)], what, draw(k, 1 << 16), draw(k, 1 << 16));
        return;
    }
    if (what < 40) {
        if (k->nwait + k->nrun < k->live_max) submit(k);
    } else if (what < 62) {
        if (k->nrun) settle(k, (int)draw(k, (uint32_t)k->nrun));
    } else if (what < 70) {
        if (k->nwait) cancel(k, (int)draw(k, (uint32_t)k->nwait));
    } else if (what < 76) {
        int rc = k->nrun ? arm_heartbeat(k->ctx, k->run[draw(k, (uint32_t)k->nrun)], now) : 0;
        if (rc && rc != ARM_E_STALE) FAIL("heartbeat: %d", rc);
    } else if (what < 80) {
        sweep(k);
    } else if (what < 82) {
        must(arm_penalise(k->ctx, k->scope[draw(k, SCOPES)], now + draw(k, 20000), draw(k, 8) == 0, now, now), "penalise");
    } else if (what < 84) {
        for (int i = 0; i < SCOPES; i++) must(arm_reopen(k->ctx, k->scope[i], now), "reopen");
    } else if (what < 88) {
        must(arm_try(k->ctx, draw(k, 2), 1 + draw(k, 20), now), "try");
    } else if (what < 89) {
        must(arm_correct(k->ctx, draw(k, 2), draw(k, 1500), now), "correct");
    } else if (what < 93) {
        advance_time(k, 5000);
    } else {
        poll_mail(k);
    }
}

static inline void show(worker *k) {
    int64_t now = tick(k, 0);
    for (int i = 0; i < POOLS; i++) {
        arm_pool_info p;
        must(arm_pool_at(k->ctx, i, &p), "look at a pool");
        fprintf(stderr, "pool %d: %d of %d lanes, %d zombies, %d wait\n", i, p.used, p.lanes, p.dead, p.waiting);
    }
    for (int i = 0; i < LIMITS; i++) {
        arm_limit_info l;
        must(arm_limit_at(k->ctx, i, now, &l), "look at a limit");
        fprintf(stderr, "limit %d: %lld of %lld\n", i, (long long)l.level, (long long)l.capacity);
    }
    for (int i = 0; i < SCOPES; i++) {
        arm_scope_info s;
        must(arm_scope_at(k->ctx, k->scope[i], &s), "look at a scope");
        fprintf(stderr, "scope %d: factor %d, open in %lld and %lld us, %d parked\n", i, s.factor,
                (long long)(s.closed_until_ns - now) / 1000, (long long)(s.next_ns - now) / 1000, s.parked);
    }
    for (int64_t i = 0; i < arm_ticket_count(k->ctx); i++) {
        arm_ticket_info t;
        must(arm_ticket_at(k->ctx, i, &t), "look at a ticket");
        if (t.state >= ARM_WAITING)
            fprintf(stderr, "ticket %llx: state %d, pool %d, level %d, owner %d, scope %d, %lld tokens, %lld memory, %d kids\n",
                    (long long)t.handle, t.state, t.pool, t.level, t.owner, t.scope, (long long)t.tokens, (long long)t.memory, t.kids);
    }
}

/* Ends all that it has: what waits is granted sooner or later, without anybody else's help. */
static inline void drain(worker *k) {
    kv_drain(k->ctx, &k->kv);
    for (long n = 0; k->nwait || k->nrun; n++) {
        if (n == 5000000) {
            show(k);
            FAIL("%d tickets wait for ever", k->nwait);
        }
        while (k->nrun) settle(k, k->nrun - 1);
        poll_mail(k);
        if (n & 1) advance_time(k, 20000);
    }
}

static inline void check(worker *k) {
    char why[200];
    if (arm_check(k->ctx, why, sizeof why)) FAIL("invariant: %s", why);
    kv_check(k->ctx);
}

/* Nobody has anything: lanes, queues, rate and memory are back. */
static inline void check_empty(worker *k) {
    check(k);
    kv_check_empty(k->ctx);
    int64_t later = tick(k, 10000000);
    for (int i = 0; i < POOLS; i++) {
        arm_pool_info p;
        must(arm_pool_at(k->ctx, i, &p), "look at a pool");
        if (p.used || p.dead || p.waiting) FAIL("pool %d: %d lanes, %d zombies, %d waiting left", i, p.used, p.dead, p.waiting);
    }
    for (int i = 0; i < LIMITS; i++) {
        arm_limit_info l;
        must(arm_limit_at(k->ctx, i, later, &l), "look at a limit");
        if (l.level != l.capacity) FAIL("limit %d: %lld of %lld came back", i, (long long)l.level, (long long)l.capacity);
    }
    for (int i = 0; i < SCOPES; i++) {
        arm_scope_info s;
        must(arm_scope_at(k->ctx, k->scope[i], &s), "look at a scope");
        if (s.parked) FAIL("scope %d: %d parked", i, s.parked);
    }
}

static inline void bury(worker *k, int32_t slot, int64_t pid) {
    int64_t rc, at_it, started, wake;
    if (arm_owner_info(k->ctx, slot, &at_it, &started, &wake) == ARM_OK && at_it == pid) kv_forget(k->kv.book, slot);
    do {
        rc = arm_owner_dead(k->ctx, slot, pid, tick(k, 1000));
        must(rc, "bury");
        k->doing = "bury";
        rc = k->io->n_granted;
        collect(k);
    } while (rc == ARM_MAX_OUT);
}

static inline void bury_all_others(worker *k) {
    int64_t pid, started, wake;
    for (int32_t i = 0; i < OWNERS; i++)
        if (i != arm_owner_slot(k->ctx) && arm_owner_info(k->ctx, i, &pid, &started, &wake) == ARM_OK) bury(k, i, pid);
}

static inline int32_t slot_of(worker *k, int64_t pid) {
    int64_t p, started, wake;
    for (int32_t i = 0; i < OWNERS; i++)
        if (i != arm_owner_slot(k->ctx) && arm_owner_info(k->ctx, i, &p, &started, &wake) == ARM_OK && p == pid) return i;
    return -1;
}
#endif
