/* agentrm kernel: admission of agents' calls to shared lanes and limits.
 *
 * THEORY OF OPERATION
 *
 * The kernel is a pure state machine. `now_ns` comes in, decisions come out; it never blocks, sleeps, allocates,
 * reads a clock or touches a file, and it has no globals. All of its state lives in one caller-supplied block, the
 * arena, addressed by offsets, so that the block may be shared by several processes at different addresses.
 *
 * A call is a TICKET. The only transitions are
 *
 *     FREE -> CLAIMED          a participant takes an unused slot into its private cache
 *     CLAIMED -> WAITING       submit, no room
 *     CLAIMED -> RUNNING       submit, room
 *     WAITING -> RUNNING       grant: by settle, cancel, reap, advance or another submit
 *     WAITING -> CLAIMED       cancel (the slot goes to the canceller's cache, generation + 1)
 *     RUNNING -> CLAIMED       settle, refund
 *     RUNNING -> ZOMBIE        reap of work that cannot be stopped
 *     ZOMBIE  -> CLAIMED       settle when that work ends at last
 *     CLAIMED -> FREE          cache overflow, or the owner died
 *
 * and each of them is decided by one compare-and-swap: every operation is a transaction (arm_tx.c) that reads a
 * consistent state, collects its writes, and publishes all of them by swapping the root word. Whoever finds a
 * published transaction unfinished finishes it, so a participant stopped or killed at any instruction holds up
 * nobody. A handle carries the generation of its slot: a late settle of a reaped or reused ticket is ARM_E_STALE and
 * changes nothing.
 *
 * ORDER. A ticket enters a level (0 interactive, 1 subagent, 2 background; policy and feedback may lower it). At the
 * instant of a grant the lowest level with work goes first. Inside a level tenants, and inside a tenant its agents,
 * leave in the order of their virtual start times (start-time fair queueing): serving work that costs c moves the
 * start on by c / weight; whoever becomes active starts at the time of the one last served or at their own last finish,
 * whichever is later, so idling earns nothing.
 * c is the largest of the shares of lane time, requests, tokens and memory (what part of it is held, and for how long)
 * that the call takes of its pool, in microseconds of the whole pool. Equal starts leave in order of arrival.
 *
 * A ticket blocked by a limit may be passed by smaller ones `backfill_passes` times or for `backfill_us`, then what
 * it needs is saved up for it (the limit's `saver`).
 *
 * TIME is in microseconds since the arena's epoch inside the kernel and in nanoseconds of the caller's clock at its
 * border.
 */
#ifndef ARM_H
#define ARM_H
#include <stddef.h>
#include <stdint.h>

/* cdef: everything from here to the matching end is also what cffi reads */
#define ARM_VERSION 2
#define ARM_MAX_LIMITS 6
#define ARM_MAX_OUT 64

#define ARM_INTERACTIVE 0
#define ARM_SUBAGENT 1
#define ARM_BACKGROUND 2

#define ARM_FREE 0
#define ARM_CLAIMED 1
#define ARM_WAITING 2
#define ARM_RUNNING 3
#define ARM_ZOMBIE 4

#define ARM_FIFO 0
#define ARM_RR 1
#define ARM_PRIORITY 2
#define ARM_MLFQ 3
#define ARM_DRF 4
#define ARM_CUSTOM 5

#define ARM_REQUESTS 0
#define ARM_TOKENS 1
#define ARM_MEMORY 2

#define ARM_ROLLING 0
#define ARM_BUCKET 1
#define ARM_GAUGE 2

#define ARM_OK 0
#define ARM_E_STALE -1
#define ARM_E_FULL -2
#define ARM_E_TOO_LARGE -3
#define ARM_E_ARGUMENT -4
#define ARM_E_AGENT -6
#define ARM_E_QUEUE -7
#define ARM_E_STATE -8
#define ARM_E_VERSION -9

#define ARM_F_RESUMED 1
#define ARM_F_TRY 2
#define ARM_F_AWAITED 4 /* a person waits for it through others: it is not demoted */

#define ARM_DONE 0
#define ARM_FAILED 1
#define ARM_REFUND 2

#define ARM_OVERDUE_IDLE 1
#define ARM_OVERDUE_RUN 2

#define ARM_EV_SUBMIT 1
#define ARM_EV_GRANT 2
#define ARM_EV_SETTLE 3
#define ARM_EV_CANCEL 4
#define ARM_EV_REAP 5
#define ARM_EV_PENALTY 6
#define ARM_EV_ZOMBIE_END 7

typedef struct arm_config {
    uint32_t tickets, agents, tenants, pools, limits, scopes, owners, events; /* capacities */
    uint32_t ring_entries;                                                    /* of all rolling limits together */
    uint32_t backfill_passes;
    int64_t backfill_us, age_us, boost_us;
    int64_t pause_us; /* calls of an agent with such a pause between them do not add up to a quantum */
    int64_t quanta_us[3], quanta_tokens[3]; /* 0: no quantum at that level */
    int64_t epoch_ns;
    uint32_t shared; /* 0: private, one participant whose calls are serialised by its caller (see arm_tx.c) */
    uint32_t kv_pools, kv_blocks, kv_chains; /* block pools, blocks of all of them, chains (arm_kv.h) */
} arm_config;

typedef struct arm_limit_config {
    uint32_t unit, shape;
    int64_t amount; /* per window, or the capacity of a gauge */
    int64_t window_us;
    int64_t burst; /* buckets only */
    uint32_t ring; /* rolling only: entries, a power of two */
} arm_limit_config;

typedef struct arm_pool_config {
    uint32_t lanes, zombies, max_queued, policy, oversize_debt, domain;
    uint32_t nlimits;
    uint32_t limits[ARM_MAX_LIMITS];
    uint32_t takes[ARM_MAX_LIMITS]; /* of each limit, by every call of the pool; 0: what the call itself states */
    int32_t account_scope; /* -1: none */
    int64_t request_cost_us;
    int64_t token_cost_q8; /* microseconds of the whole pool per token, times 256 */
} arm_pool_config;

/* What a call asks for beyond the packed arguments of arm_submit; zero is the default of each. Reset by the kernel
 * after every submit. */
typedef struct arm_request {
    int64_t idle_us, run_us; /* 0: no limit */
    int64_t parent;          /* handle of the enclosing lease, any pool; 0: none */
    int64_t key;             /* ARM_CUSTOM: order key inside the level */
    int64_t memory;
    int32_t level; /* ARM_CUSTOM: level */
} arm_request;

typedef struct arm_io {
    arm_request req;
    int32_t n_granted; /* tickets of this participant that may run now */
    int32_t n_wake;    /* other owners with new mail */
    int32_t n_overdue;
    int32_t which_limit;          /* after ARM_E_TOO_LARGE: index of the limit */
    int64_t next_due_ns;          /* when a waiting ticket can run without any settle; -1: unknown or none waits */
    int64_t granted[ARM_MAX_OUT]; /* handles */
    int32_t wake[ARM_MAX_OUT];    /* owner slots */
    int64_t overdue[ARM_MAX_OUT]; /* handles */
    int32_t reason[ARM_MAX_OUT];
} arm_io;

typedef struct arm_ticket_info {
    int64_t handle, submitted_ns, granted_ns, heartbeat_ns, parent;
    int64_t tokens, memory;
    int32_t state, pool, klass, level, agent, tenant, owner, scope, passes, loan, kids;
} arm_ticket_info;

typedef struct arm_pool_info {
    int32_t lanes, used, dead, zombies, waiting;
    int64_t level_start[3];
    int64_t ewma_us;
} arm_pool_info;

typedef struct arm_limit_info {
    int64_t level, capacity, amount, window_us; /* level: what can be taken now, in the limit's own unit */
    int32_t unit, shape;
} arm_limit_info;

typedef struct arm_scope_info {
    int64_t closed_until_ns, gap_us, next_ns, cut_ns;
    int32_t factor, parked, pool; /* factor: pace, 65536 is full speed */
} arm_scope_info;

typedef struct arm_event {
    int64_t seq, time_ns, handle, agent, pool, value;
    int32_t kind, level;
} arm_event;

typedef struct arm_ctx arm_ctx;

size_t arm_size(const arm_config *config);
size_t arm_ctx_size(void);
int arm_init(void *zeroed_memory, size_t size, const arm_config *config);
int arm_set_limit(void *memory, uint32_t limit, const arm_limit_config *config);
int arm_set_pool(void *memory, uint32_t pool, const arm_pool_config *config);

/* A participant: one per process, or per thread where calls are not serialised otherwise. */
int arm_join(arm_ctx *ctx, void *memory, size_t size, int64_t pid, int64_t started, int64_t wake_token);
int arm_leave(arm_ctx *ctx, int64_t now_ns);
arm_io *arm_io_of(arm_ctx *ctx);
int arm_owner_slot(arm_ctx *ctx);

/* Names (at most 60 bytes) to small integers, shared by all participants. */
int64_t arm_tenant(arm_ctx *ctx, const char *name, size_t length, uint32_t weight_q10);
int64_t arm_agent(arm_ctx *ctx, const char *name, size_t length, uint32_t tenant, uint32_t weight_q10);
int64_t arm_scope(arm_ctx *ctx, const char *name, size_t length, int32_t pool);
int arm_name(arm_ctx *ctx, int32_t kind, int32_t index, char *out60);

/* who: pool | class << 10 | flags << 12 | agent << 16 | scope << 40. agent is what arm_agent returned: 24 bits of index
 * and, from its bit 36 (bit 52 here), a tag of 8 bits, by which ARM_E_AGENT tells that the slot has another name now.
 * Returns handle << 1 | granted, or an error. */
int64_t arm_submit(arm_ctx *ctx, int64_t who, int64_t tokens, int64_t now_ns);
/* how: outcome | tokens really used << 2; ARM_REFUND gives everything back. Returns n_granted or an error. */
int64_t arm_settle(arm_ctx *ctx, int64_t handle, int64_t how, int64_t now_ns);
int64_t arm_cancel(arm_ctx *ctx, int64_t handle, int64_t now_ns); /* ARM_E_STATE: it runs already */
int arm_heartbeat(arm_ctx *ctx, int64_t handle, int64_t now_ns);
int64_t arm_reap(arm_ctx *ctx, int64_t handle, int64_t now_ns); /* RUNNING -> ZOMBIE */
int64_t arm_advance(arm_ctx *ctx, int64_t now_ns);
int64_t arm_poll(arm_ctx *ctx); /* grants made by other owners */
/* What is overdue goes to io.overdue and io.reason. Begin with cursor 0; returns the next cursor, 0 at the end. */
int64_t arm_sweep(arm_ctx *ctx, int64_t cursor, int64_t now_ns);
/* Several may bury the same dead owner; a place that has another owner than `pid` by now is left alone. */
int64_t arm_owner_dead(arm_ctx *ctx, int32_t owner, int64_t pid, int64_t now_ns);
int arm_owner_info(arm_ctx *ctx, int32_t owner, int64_t *pid, int64_t *started, int64_t *wake_token);

int64_t arm_try(arm_ctx *ctx, int64_t limit, int64_t amount, int64_t now_ns); /* 1 taken, 0 not now (next_due_ns) */
/* cut: 0 only closes; 1 also slows down; 2 slows down less, the provider having named the time */
int arm_penalise(arm_ctx *ctx, int32_t scope, int64_t until_ns, int32_t cut, int64_t since_ns, int64_t now_ns);
int arm_reopen(arm_ctx *ctx, int32_t scope, int64_t now_ns);
int arm_correct(arm_ctx *ctx, int64_t limit, int64_t remaining, int64_t now_ns);
int arm_set_policy(arm_ctx *ctx, int32_t pool, uint32_t policy);

int arm_ticket_at(arm_ctx *ctx, int64_t index, arm_ticket_info *out);
int64_t arm_ticket_count(arm_ctx *ctx); /* slots ever used */
int arm_pool_at(arm_ctx *ctx, int32_t pool, arm_pool_info *out);
int arm_limit_at(arm_ctx *ctx, int64_t limit, int64_t now_ns, arm_limit_info *out);
int64_t arm_scope_count(arm_ctx *ctx);
int arm_scope_at(arm_ctx *ctx, int32_t scope, arm_scope_info *out);
int arm_agent_demotion(arm_ctx *ctx, int64_t agent, int32_t klass, int64_t now_ns);
int64_t arm_events(arm_ctx *ctx, int64_t from, arm_event *out, int64_t room); /* returns how many */
int64_t arm_event_head(arm_ctx *ctx);
int arm_check(arm_ctx *ctx, char *why, size_t room); /* 0: all invariants hold */
/* end of cdef */

#ifdef ARM_FAULTS
/* Test builds only: called before each atomic step, with the number of the kind of step. */
extern void (*arm_fault_hook)(int step);
#endif
#endif
