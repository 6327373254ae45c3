/* How the kernel's own files read and write the arena, and what each of them offers the others. What lies in it is in
 * arm_layout.h. */
#ifndef ARM_INTERNAL_H
#define ARM_INTERNAL_H
#include "arm_layout.h"

#include <setjmp.h>
#include <stdbool.h>
#include <string.h>

#define ARM_LOG_BITS 11 /* the log's hash table has twice as many places as the log */
#define ARM_LOG_PLACES (1u << ARM_LOG_BITS)
#define ARM_CACHE 32
#define ARM_CLAIM 16
#define ARM_SCAN 16

#define STEP_READ_ROOT 0
#define STEP_COMMIT 1
#define STEP_APPLY 2
#define STEP_RELEASE 3
#define STEP_HELP 4
#define STEP_PRIVATE 5
#define STEP_HEARTBEAT 6
#define STEP_EVENT 7

/* The kernel is compiled twice: file by file, for either kind of arena, and once more as one unit for private arenas
 * alone (arm_private.c), where the compiler knows that a cell is a plain word and that nobody else calls its functions:
 * half the time. The functions on the hot path go over to that one by themselves. */
#ifdef ARM_PRIVATE
#define ARM_LOCAL static
#define ARM_DIRECT(c) ((void)(c), true)
#define ARM_IF_PRIVATE(c, call) ((void)0)
#else
#define ARM_LOCAL
#define ARM_DIRECT(c) ((c)->direct)
#define ARM_IF_PRIVATE(c, call)                                                                                        \
    do {                                                                                                               \
        if ((c)->direct) return (call);                                                                                \
    } while (0)
int64_t arm_private_submit(arm_ctx *c, int64_t who, int64_t tokens, int64_t now_ns);
int64_t arm_private_settle(arm_ctx *c, int64_t handle, int64_t how, int64_t now_ns);
int64_t arm_private_cancel(arm_ctx *c, int64_t handle, int64_t now_ns);
int64_t arm_private_reap(arm_ctx *c, int64_t handle, int64_t now_ns);
int64_t arm_private_advance(arm_ctx *c, int64_t now_ns);
int64_t arm_private_try(arm_ctx *c, int64_t limit, int64_t amount, int64_t now_ns);
int64_t arm_private_kv_open(arm_ctx *c, int64_t who, int64_t program, int64_t tokens, const char *hashes, int64_t n_hashes,
                            struct arm_kv_taken *taken);
int64_t arm_private_kv_extend(arm_ctx *c, int64_t chain, int64_t tokens, const char *hashes, int64_t n_hashes,
                              struct arm_kv_taken *taken);
int64_t arm_private_kv_take(struct arm_kv_tap *tap, int64_t tokens);
int64_t arm_private_kv_give(arm_ctx *c, int64_t chain);
int64_t arm_private_kv_fork(arm_ctx *c, int64_t chain, int64_t program);
int64_t arm_private_kv_truncate(arm_ctx *c, int64_t chain, int64_t tokens, int64_t how, double score);
int64_t arm_private_kv_release(arm_ctx *c, int64_t chain, int64_t how, double score);
int64_t arm_private_kv_evict(arm_ctx *c, int64_t pool, int64_t n, struct arm_kv_taken *taken);
int64_t arm_private_kv_rescore(arm_ctx *c, int64_t pool, const char *hashes, int64_t n_hashes, double score);
#endif

#ifdef ARM_FAULTS
#define ARM_FAULT(step)                                                                                                \
    do {                                                                                                               \
        if (arm_fault_hook) arm_fault_hook(step);                                                                      \
    } while (0)
#else
#define ARM_FAULT(step) ((void)0)
#endif

struct arm_ctx {
    arm_io io;
    char *base;
    arm_arena *arena;
    arm_ticket *tickets; /* the tables, at this participant's addresses */
    arm_flow *flows;
    arm_pool *pools;
    arm_limit *limits;
    arm_scope_rec *scopes;
    arm_agent_rec *agents, *tenants;
    arm_owner_rec *owners;
    arm_desc *desc;
    uint32_t slot;
    uint64_t claim; /* what it wrote there */
    bool direct; /* private arena */
    uint64_t root;
    uint32_t nwrites, stamp;
    int32_t granted, woken; /* of the running transaction */
    int64_t now, due;
    int64_t boost_from, boost_count; /* the period of boost_us that `now` was in last */
    int64_t freed; /* slot that the running transaction puts into the cache, + 1 */
    bool more;     /* it left grants to be made */
    uint32_t events;
    arm_noted event[32];
    uint32_t ncache;
    uint32_t cache[ARM_CACHE];
    uint32_t hash[ARM_LOG_PLACES]; /* stamp:16 | index + 1:16 */
    arm_kv_pool *kv_pools;
    arm_block *blocks;
    cell *kv_heap, *kv_buckets, *kv_charges;
    arm_chain *chains;
    jmp_buf again;
};

/* --- transactions (arm_tx.c) --- */
typedef int64_t (*arm_body)(arm_ctx *c, const int64_t *args);
ARM_LOCAL int64_t arm_run(arm_ctx *c, arm_body body, const int64_t *args, int64_t now_ns);
#ifndef ARM_KV_ALONE
ARM_LOCAL void arm_note(arm_ctx *c, uint32_t kind, int64_t handle, uint32_t agent, uint32_t pool, uint32_t level, int64_t value);
#endif

static inline uint32_t cell_no(arm_ctx *c, const cell *p) { return (uint32_t)(((const char *)p - c->base) >> 3); }

static inline uint32_t log_find(arm_ctx *c, uint32_t no) {
    uint32_t h = (no * 2654435761u) >> (32 - ARM_LOG_BITS);
    for (;; h = (h + 1) & (ARM_LOG_PLACES - 1)) {
        uint32_t e = c->hash[h];
        if ((e >> 16) != c->stamp) return 0;
        uint32_t i = e & 0xffff;
        if (atomic_load_explicit(&c->desc->write[i - 1].cellno, memory_order_relaxed) == no) return i;
    }
}

static inline uint64_t rd_word(arm_ctx *c, cell *p) {
    if (ARM_DIRECT(c)) return atomic_load_explicit(p, memory_order_relaxed);
    if (c->nwrites) {
        uint32_t i = log_find(c, cell_no(c, p));
        if (i) return atomic_load_explicit(&c->desc->write[i - 1].new_, memory_order_relaxed);
    }
    uint64_t w = atomic_load_explicit(p, memory_order_acquire);
    if (atomic_load_explicit(&c->arena->root, memory_order_relaxed) != c->root) longjmp(c->again, 1);
    return w;
}

ARM_LOCAL void log_word(arm_ctx *c, cell *p, uint64_t value, bool wide);

static inline void wr_word(arm_ctx *c, cell *p, uint64_t value, bool wide) {
    if (ARM_DIRECT(c)) atomic_store_explicit(p, value, memory_order_relaxed);
    else log_word(c, p, value, wide);
}

static inline uint32_t rd(arm_ctx *c, cell *p) { return (uint32_t)rd_word(c, p); }
static inline int64_t rdw(arm_ctx *c, cell *p) { return (int64_t)(rd_word(c, p) & WIDE_MASK); }
static inline void wr(arm_ctx *c, cell *p, uint32_t v) { wr_word(c, p, v, false); }
static inline void wrw(arm_ctx *c, cell *p, int64_t v) { wr_word(c, p, (uint64_t)v & WIDE_MASK, true); }

/* Plain writes to a slot that this participant has CLAIMED: nobody else writes there; the version still moves on. */
static inline void put_word(arm_ctx *c, cell *p, uint64_t value, bool wide) {
    uint64_t version = 0;
    if (!ARM_DIRECT(c)) {
        uint64_t w = atomic_load_explicit(p, memory_order_relaxed);
        version = wide ? ((w >> 48) + 1) << 48 : ((w >> 32) + 1) << 32;
    }
    ARM_FAULT(STEP_PRIVATE);
    atomic_store_explicit(p, version | value, memory_order_release);
}
static inline void put_narrow(arm_ctx *c, cell *p, uint32_t v) { put_word(c, p, v, false); }
static inline void put_wide(arm_ctx *c, cell *p, int64_t v) { put_word(c, p, (uint64_t)v & WIDE_MASK, true); }

/* --- records --- */
static inline arm_ticket *ticket(arm_ctx *c, uint32_t i) { return c->tickets + i; }
static inline arm_flow *flow(arm_ctx *c, uint32_t i) { return c->flows + i; }
static inline arm_pool *pool(arm_ctx *c, uint32_t i) { return c->pools + i; }
static inline arm_limit *limit(arm_ctx *c, uint32_t i) { return c->limits + i; }
static inline arm_scope_rec *scope(arm_ctx *c, uint32_t i) { return c->scopes + i; }
static inline arm_agent_rec *agent(arm_ctx *c, uint32_t i) { return c->agents + i; }
static inline arm_agent_rec *tenant(arm_ctx *c, uint32_t i) { return c->tenants + i; }
static inline arm_owner_rec *owner(arm_ctx *c, uint32_t i) { return c->owners + i; }

/* The first ticket of an agent's flow, + 1; 0: it has none. */
static inline uint32_t flow_first(arm_ctx *c, uint32_t f) {
    uint32_t t = rd(c, &flow(c, f)->fhead);
    return t ? t : rd(c, &flow(c, f)->qhead);
}

#define GEN_MASK ((INT64_C(1) << 38) - 1)
static inline int64_t make_handle(uint32_t index, int64_t state) { return ((state >> 4) & GEN_MASK) << 24 | index; }
static inline uint32_t handle_index(int64_t h) { return (uint32_t)(h & 0xffffff); }
static inline int64_t handle_gen(int64_t h) { return h >> 24; }
static inline int state_of(int64_t word) { return (int)(word & 15); }
static inline uint32_t meta_pool(uint32_t m) { return m & 1023; }
static inline uint32_t meta_class(uint32_t m) { return m >> 10 & 3; }
static inline uint32_t meta_level(uint32_t m) { return m >> 12 & 3; }
static inline uint32_t with_level(uint32_t m, uint32_t level) { return (m & ~(3u << 12)) | level << 12; }
static inline uint32_t who_agent(int64_t w) { return (uint32_t)(w & 0xffffff); }
static inline uint32_t who_scope(int64_t w) { return (uint32_t)(w >> 24 & 0xfff); }
static inline uint32_t who_owner(int64_t w) { return (uint32_t)(w >> 36 & 0xfff); }

static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline void earliest(arm_ctx *c, int64_t t) {
    if (c->due < 0 || t < c->due) c->due = t;
}

#ifndef ARM_KV_ALONE
/* --- queue (arm_flow.c): enqueue and dequeue keep every list, count and virtual time right --- */
ARM_LOCAL void queue_add(arm_ctx *c, uint32_t t, bool front);
ARM_LOCAL void queue_remove(arm_ctx *c, uint32_t t);              /* cancelled, lifted or parked: costs its flow nothing */
ARM_LOCAL void queue_serve(arm_ctx *c, uint32_t t, bool in_turn); /* granted: charges its flow */
ARM_LOCAL void count_waiting(arm_ctx *c, uint32_t p, int by);
ARM_LOCAL void queue_lift(arm_ctx *c, uint32_t p);                /* ageing and boost, a bounded number a call */
ARM_LOCAL void queue_adjust(arm_ctx *c, uint32_t t, int64_t difference);
ARM_LOCAL int64_t queue_cost(arm_ctx *c, uint32_t t, uint32_t meta, int64_t tokens, int64_t lane_us);
ARM_LOCAL int64_t queue_memory_cost(arm_ctx *c, uint32_t t, int64_t held_us);
ARM_LOCAL uint32_t queue_level(arm_ctx *c, uint32_t a, uint32_t klass, uint32_t policy, int32_t custom);
ARM_LOCAL void queue_usage(arm_ctx *c, uint32_t a, uint32_t klass, int64_t submitted, int64_t lane_us, int64_t tokens);

/* --- tickets in order of service (arm_walk.c) --- */
typedef struct {
    uint32_t level, tenant_flow, agent_flow, ticket, left, depth;
    bool cut; /* tickets of the level were passed over */
} arm_walk;
ARM_LOCAL uint32_t walk_first(arm_ctx *c, arm_pool *p, arm_walk *w, uint32_t level);
ARM_LOCAL uint32_t walk_next(arm_ctx *c, arm_walk *w);
ARM_LOCAL uint32_t queue_first(arm_ctx *c, arm_pool *p); /* who is first in the pool, + 1 */

/* --- limits (arm_limit.c) --- */
ARM_LOCAL bool limits_fit(arm_ctx *c, uint32_t t, int *lacking);
ARM_LOCAL void limits_take(arm_ctx *c, uint32_t t);
ARM_LOCAL void limits_settle(arm_ctx *c, uint32_t t, int64_t tokens, bool refund);
ARM_LOCAL int64_t limits_due(arm_ctx *c, uint32_t t);
ARM_LOCAL int limits_too_large(arm_ctx *c, arm_pool *p, int64_t tokens, int64_t memory);
ARM_LOCAL void limits_save(arm_ctx *c, uint32_t t);
ARM_LOCAL int64_t limits_memory(arm_ctx *c, uint32_t t);
ARM_LOCAL bool lacks_gauge(arm_ctx *c, uint32_t t);
ARM_LOCAL bool is_nested(arm_ctx *c, uint32_t t);

/* --- scopes (arm_scope.c) --- */
ARM_LOCAL int64_t scope_open_at(arm_ctx *c, uint32_t s); /* 0: open now */
ARM_LOCAL void scope_started(arm_ctx *c, uint32_t s);
ARM_LOCAL void scope_succeeded(arm_ctx *c, uint32_t s);
ARM_LOCAL void scope_park(arm_ctx *c, uint32_t t);
ARM_LOCAL void scope_unpark(arm_ctx *c, uint32_t p);
ARM_LOCAL void scope_drop(arm_ctx *c, uint32_t t);

/* --- dispatch (arm_dispatch.c) --- */
ARM_LOCAL void dispatch(arm_ctx *c, uint32_t domain);
ARM_LOCAL void mail_drop(arm_ctx *c, uint32_t t);
ARM_LOCAL void dispatch_rest(arm_ctx *c, int64_t now_ns, uint32_t domain);
ARM_LOCAL int64_t run_and_dispatch(arm_ctx *c, arm_body body, const int64_t *args, int64_t now_ns, uint32_t domain);
ARM_LOCAL void grant(arm_ctx *c, uint32_t t, bool queued, bool in_turn, bool loan);
ARM_LOCAL bool lane_free(arm_ctx *c, arm_pool *p);
ARM_LOCAL void child_wait(arm_ctx *c, uint32_t t);
ARM_LOCAL void child_leave(arm_ctx *c, uint32_t t);
ARM_LOCAL void lane_give_back(arm_ctx *c, uint32_t t);
ARM_LOCAL bool alive(arm_ctx *c, uint32_t index_plus_1, uint32_t gen, int *state);
#endif

/* --- KV blocks (arm_kv_*.c) --- */
void kv_bury(arm_ctx *c, uint32_t owner, uint64_t claim);
bool kv_agent_idle(arm_ctx *c, uint32_t a);
void kv_agent_gone(arm_ctx *c, uint32_t a);
#endif
