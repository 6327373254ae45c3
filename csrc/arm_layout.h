/* What lies in an arena: its cells, the record of each table, and the head that says where the tables are. */
#ifndef ARM_LAYOUT_H
#define ARM_LAYOUT_H
#include "arm_kv.h"

#include <stdatomic.h>

/* A cell is one 64-bit word: a value in the low bits, a version above it that every write moves on, so that a helper
 * that wakes up late can never undo a newer write: its compare-and-swap names a version that is gone. Wide cells (W:
 * times, virtual times, token levels) have 48 bits of value and 16 of version, narrow ones (indexes, counters) 32/32.
 * The version wraps after 2^16 or 2^32 writes of that very cell while a helper is stopped between one load and the
 * next instruction, and even then the value would have to be the same too. */
typedef _Atomic uint64_t cell;

/* A transaction starts no further step of dispatch when its log is half full, and no step needs the other half. */
#define ARM_MAX_WRITES 1024
#define ARM_TOWER 6
#define ARM_NAME_CELLS 10
#define ARM_KV_MAX_BLOCKS 0x7fffff
#define WIDE_MASK ((UINT64_C(1) << 48) - 1)
#define BIAS (INT64_C(1) << 46)

/* flags in a ticket's meta cell, above pool:10 class:2 level:2 */
#define META_LOAN (1u << 15)    /* runs on its lender's lane */
#define META_FRONT (1u << 16)   /* in the front queue of its flow */
#define META_PARKED (1u << 17)  /* in its scope's parked list */
#define META_MAILED (1u << 18)  /* in its owner's mailbox */
#define META_AGED (1u << 19)    /* in the pool's age list (else demoted list) */
#define META_LISTED (1u << 20)
#define META_FLAT (1u << 21)   /* queued in the one flow of fifo and priority */
#define META_TURN (1u << 22)   /* cost of one turn (rr) */
#define META_CUSTOM (1u << 23) /* in a flow of its own, at its own key */

typedef struct {
    cell state; /* W: generation << 4 | state */
    cell meta;
    cell who;    /* W: agent:24 | scope:12 | owner:12 */
    cell tokens; /* reserved */
    cell memory;
    cell submitted, granted, idle, run_until, blocked, cost, key, arrival; /* W */
    cell passes;
    cell qnext, qprev, anext, aprev; /* flow queue, age or demoted list */
    cell flow;
    cell parent, parent_gen; /* immediate enclosing lease */
    cell lender, lender_gen; /* nearest enclosing lease of the same pool */
    cell loan;               /* the child that rides on this lane */
    cell kids;               /* live children, any pool */
    cell whead, wtail;       /* waiting children of the same pool */
    cell wnext, wprev;
    cell lnext, lprev; /* pool's list of lenders with waiting children */
    cell mail;         /* next in the owner's mailbox */
    cell stamp[ARM_MAX_LIMITS];
    cell beat; /* raw generation:16 | time:48 of the last heartbeat, outside transactions */
} arm_ticket;

typedef struct {
    cell start, arrival, finish, vtime, adjust; /* W; adjust is biased */
    cell id;                                    /* W: lookup key */
    cell hnext, parent, height;
    cell members; /* of a tenant's flow: how many agents' flows name it */
    cell fhead, ftail, qhead, qtail;
    cell tower[ARM_TOWER], child[ARM_TOWER];
} arm_flow;

typedef struct {
    cell head[ARM_TOWER];
    cell vtime; /* W */
} arm_level;

typedef struct {
    arm_pool_config config; /* constant after arm_set_pool, but for the policy */
    uint32_t domain_next;   /* pool + 1 */
    cell policy, used, dead, waiting;
    cell ahead, atail, dhead, dtail; /* age list (level 2) and demoted list */
    cell aserved;                    /* W: when level 2 was last served */
    cell lend;                       /* lenders with waiting children */
    cell parkers, nscopes;           /* scopes with parked tickets; scopes there are */
    cell ewma;                       /* raw microseconds, advisory */
    arm_level level[3];
} arm_pool;

typedef struct {
    arm_limit_config config;
    int64_t num, den, full;       /* bucket: units per microsecond, units per token, units when full */
    int64_t fill_us, rise_us;     /* time from empty to full; from the deepest debt there can be */
    int64_t most;                 /* that it can give at once */
    uint64_t ring;                /* offset of (time, amount) pairs */
    cell level, last;             /* bucket: biased units, time; gauge: taken */
    cell head, tail, sum;         /* rolling */
    cell saver, saver_gen; /* ticket for which this limit saves up */
} arm_limit;

typedef struct {
    cell name[ARM_NAME_CELLS];
    cell hnext, hash;
    cell pool, link, listed, parked;
    cell phead[3], ptail[3];      /* parked tickets by level */
    cell until, next, cut, gap, opened; /* W; cut: when its pace was last cut, 0 if it runs freely */
    cell wins, starts, run;             /* since it opened: successes, starts; starts between the two cuts before */
    cell shown;                         /* W: the gap that it was last shown to take */
    cell last, interval; /* raw microseconds, advisory: last grant, usual distance of two */
} arm_scope_rec;

typedef struct {
    cell name[ARM_NAME_CELLS];
    cell hnext, hash, tenant, weight, tag; /* tag moves on when the slot is given to another name */
    cell used[3];                          /* W, by class: share:14 | demotion:2 | last end, ms:32 */
    cell seen, hint; /* raw, advisory: last use; flow last queued in */
} arm_agent_rec;

typedef struct {
    cell claim;              /* raw: generation:32 | pid of whoever took the slot, 0 if free:32 */
    cell pid, started, wake; /* W */
    cell mhead, mtail;
} arm_owner_rec;

typedef struct {
    cell seq, time, what, handle, value; /* seqlock: odd while written */
} arm_event_rec;

typedef struct {
    int64_t handle, value;
    uint64_t what; /* agent | pool:16 | level:4 | kind:4 */
} arm_noted;

typedef struct {
    cell cellno, old, new_;
} arm_write;

typedef struct {
    cell count;
    arm_write write[ARM_MAX_WRITES];
} arm_desc;

typedef struct {
    cell refs;  /* W pins:24 | kids:24: chains that end or hold here and kids in use; kids that are cached */
    cell place; /* W parent:24 | next in its hash bucket:24 */
    cell hash;  /* W lower 48 bits */
    cell mark;  /* W upper 16 bits of the hash | link:24 | state:8 */
    cell value; /* W in use: whom it is charged to; cached: score */
} arm_block;

typedef struct {
    arm_kv_config config; /* constant after arm_set_kv */
    uint32_t index, first;
    cell used, cached, reserved, chains, clock;  /* W */
    cell queries, hits, taken, evicted;          /* W */
    cell free_head, high, heap_n;
} arm_kv_pool;

typedef struct {
    cell state;   /* W: generation << 4 | state */
    cell who;     /* W owner:12 | pool:12 | agent:24 */
    cell program; /* W */
    cell span;    /* W last block:24 | length:24 */
    cell tokens;  /* W */
    cell seal;    /* W leading sealed blocks:24 | blocks set aside and not yet taken:24 */
    cell hold;    /* W block that stays pinned:24 | blocks matched when it was opened:24 */
    cell copy;    /* length of the chain up to the block that is a copy of the held one */
} arm_chain;

#define ARM_BUCKETS 4096
#define ARM_DOMAINS 1024
typedef struct {
    uint64_t magic, version, size, ready;
    arm_config config;
    uint64_t tickets, agents, tenants, pools, limits, scopes, owners, events, flows, rings, descs; /* offsets */
    uint64_t kv_pools, blocks, kv_heap, kv_buckets, kv_charges, chains;
    uint32_t nflows;
    uint32_t ring_used;
    uint32_t kv_mask, kv_given; /* blocks given to pools so far */
    uint32_t event_mask; /* the ring of events has a power of two of them */
    _Alignas(64) cell root; /* sequence:48 | participant + 1:16 */
    _Alignas(64) cell event_head;
    _Alignas(64) cell free_ticket, high_ticket;
    cell free_flow, high_flow, flow_hand;
    cell n_agents, n_tenants, n_scopes;
    cell domain_waiting[ARM_DOMAINS];
    uint32_t domain_first[ARM_DOMAINS]; /* pool + 1, constant after set-up */
    cell agent_hash[ARM_BUCKETS], flow_hash[ARM_BUCKETS];
    cell tenant_hash[256], scope_hash[256];
    cell free_chain, high_chain;
} arm_arena;
#endif
