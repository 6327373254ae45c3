/* The life of a ticket: submit, settle, cancel, reap, heartbeat. The table of transitions is in arm.h. */
#include "arm_internal.h"

static int64_t next_state(int64_t state, int to) { return ((state >> 4) + 1) << 4 | to; }

static arm_ticket *live(arm_ctx *c, int64_t handle, int64_t *state) {
    uint32_t i = handle_index(handle);
    if (handle <= 0 || i >= c->arena->config.tickets) return NULL;
    *state = rdw(c, &ticket(c, i)->state);
    return (((*state >> 4) & GEN_MASK) == handle_gen(handle)) ? ticket(c, i) : NULL;
}

/* --- slots: a participant keeps a few unused ones, so that it can fill one in without telling anybody --- */

static int64_t claim_body(arm_ctx *c, const int64_t *out) {
    uint32_t *slots = (uint32_t *)(uintptr_t)out[0], n = 0;
    while (n < ARM_CLAIM) {
        uint32_t t = rd(c, &c->arena->free_ticket);
        if (t) {
            wr(c, &c->arena->free_ticket, rd(c, &ticket(c, --t)->qnext));
        } else {
            t = rd(c, &c->arena->high_ticket);
            if (t == c->arena->config.tickets) break;
            wr(c, &c->arena->high_ticket, t + 1);
        }
        wrw(c, &ticket(c, t)->state, next_state(rdw(c, &ticket(c, t)->state), ARM_CLAIMED));
        wrw(c, &ticket(c, t)->who, (int64_t)c->slot << 36);
        slots[n++] = t;
    }
    return n;
}

static void slot_free(arm_ctx *c, uint32_t t) {
    wr(c, &ticket(c, t)->qnext, rd(c, &c->arena->free_ticket));
    wr(c, &c->arena->free_ticket, t + 1);
}

/* Ends a ticket's life: its slot goes to this participant's cache, or to everybody's list if that is full. */
static void slot_release(arm_ctx *c, uint32_t t, bool to_all) {
    arm_ticket *k = ticket(c, t);
    int64_t state = rdw(c, &k->state), who = rdw(c, &k->who);
    if (rd(c, &k->meta) & META_MAILED) mail_drop(c, t);
    to_all = to_all || c->ncache == ARM_CACHE;
    wrw(c, &k->state, next_state(state, to_all ? ARM_FREE : ARM_CLAIMED));
    if (to_all) {
        slot_free(c, t);
    } else {
        if (who_owner(who) != c->slot) wrw(c, &k->who, (int64_t)c->slot << 36);
        c->freed = t + 1;
    }
}

static void keep_slot(arm_ctx *c) {
    if (c->freed) c->cache[c->ncache++] = (uint32_t)(c->freed - 1);
    c->freed = 0;
}

static void child_ended(arm_ctx *c, arm_ticket *k) {
    int state;
    uint32_t up = rd(c, &k->parent);
    if (!alive(c, up, rd(c, &k->parent_gen), &state)) return;
    wr(c, &ticket(c, up - 1)->kids, rd(c, &ticket(c, up - 1)->kids) - 1);
    /* the parent was waiting for this child until now: its own idle time starts here */
    uint64_t w = atomic_load_explicit(&ticket(c, up - 1)->beat, memory_order_acquire);
    if ((int64_t)(w & WIDE_MASK) < c->now)
        atomic_compare_exchange_strong_explicit(&ticket(c, up - 1)->beat, &w, (w & ~WIDE_MASK) | (uint64_t)c->now,
                                                memory_order_acq_rel, memory_order_acquire);
}

/* --- submit --- */

static int64_t submit_body(arm_ctx *c, const int64_t *args) {
    int64_t who = args[0], tokens = args[1];
    const arm_request *q = &c->io.req;
    uint32_t p = who & 1023, klass = who >> 10 & 3, flags = who >> 12 & 15, a = who >> 16 & 0xffffff;
    uint32_t s = who >> 40 & 0xfff;
    arm_pool *pl = pool(c, p);
    if (a >= rd(c, &c->arena->n_agents) || (rd(c, &agent(c, a)->tag) & 0xff) != (uint32_t)(who >> 52 & 0xff))
        return ARM_E_AGENT;
    c->io.which_limit = limits_too_large(c, pl, tokens, q->memory);
    if (c->io.which_limit >= 0) return ARM_E_TOO_LARGE;
    uint32_t policy = rd(c, &pl->policy), domain = pl->config.domain;
    uint32_t level = queue_level(c, a, klass, policy, q->level);
    if (policy == ARM_MLFQ && (flags & ARM_F_AWAITED)) level = klass;

    uint32_t t = c->cache[c->ncache - 1];
    arm_ticket *k = ticket(c, t);
    int64_t state = rdw(c, &k->state);
    uint32_t meta = p | klass << 10 | level << 12;
    if (policy == ARM_FIFO || policy == ARM_PRIORITY) meta |= META_FLAT;
    if (policy == ARM_RR) meta |= META_TURN;
    if (policy == ARM_CUSTOM) meta |= META_CUSTOM;
    put_narrow(c, &k->meta, meta);
    put_wide(c, &k->who, (int64_t)a | (int64_t)s << 24 | (int64_t)c->slot << 36);
    put_narrow(c, &k->tokens, (uint32_t)tokens);
    put_wide(c, &k->memory, q->memory);
    put_wide(c, &k->submitted, c->now);
    put_wide(c, &k->idle, q->idle_us);
    put_wide(c, &k->run_until, q->run_us);
    put_wide(c, &k->blocked, 0);
    put_wide(c, &k->cost, 0);
    put_wide(c, &k->key, q->key);
    put_wide(c, &k->arrival, (int64_t)(c->root >> 16));
    put_narrow(c, &k->passes, 0);
    put_narrow(c, &k->parent, 0);
    put_narrow(c, &k->lender, 0);
    put_narrow(c, &k->loan, 0);
    put_narrow(c, &k->kids, 0);
    put_narrow(c, &k->whead, 0);
    put_narrow(c, &k->wtail, 0);
    atomic_store_explicit(&k->beat, (uint64_t)(state >> 4) << 48, memory_order_release);

    /* nested in another lease: the nearest one of the same pool may lend its lane */
    int64_t up_state;
    arm_ticket *up = q->parent ? live(c, q->parent, &up_state) : NULL;
    bool loan = false;
    if (up && state_of(up_state) == ARM_RUNNING) {
        put_narrow(c, &k->parent, handle_index(q->parent) + 1);
        put_narrow(c, &k->parent_gen, (uint32_t)(up_state >> 4));
        uint32_t i = handle_index(q->parent) + 1;
        for (int depth = 0; i && depth < 16; depth++) {
            int st;
            uint32_t gen = (uint32_t)(rdw(c, &ticket(c, i - 1)->state) >> 4);
            if (meta_pool(rd(c, &ticket(c, i - 1)->meta)) == p) {
                put_narrow(c, &k->lender, i);
                put_narrow(c, &k->lender_gen, gen);
                loan = rd(c, &ticket(c, i - 1)->loan) == 0;
                break;
            }
            uint32_t next = rd(c, &ticket(c, i - 1)->parent);
            i = next && alive(c, next, rd(c, &ticket(c, i - 1)->parent_gen), &st) && st == ARM_RUNNING ? next : 0;
        }
    } else {
        up = NULL;
    }
    int64_t handle = make_handle(t, state);
    bool alone = !rd(c, &c->arena->domain_waiting[domain]);
    int64_t closed = max64(scope_open_at(c, s), pl->config.account_scope >= 0 ? scope_open_at(c, (uint32_t)pl->config.account_scope) : 0);
    if ((alone || (loan && !rd(c, &ticket(c, rd(c, &k->lender) - 1)->whead))) && !closed && (loan || lane_free(c, pl)) &&
        limits_fit(c, t, NULL)) {
        arm_note(c, ARM_EV_SUBMIT, handle, a, p, level, tokens);
        if (up) wr(c, &up->kids, rd(c, &up->kids) + 1);
        grant(c, t, false, true, loan);
        return handle << 1 | 1;
    }
    if (rd(c, &pl->waiting) >= pl->config.max_queued) return ARM_E_QUEUE;
    arm_note(c, ARM_EV_SUBMIT, handle, a, p, level, tokens);
    if (up) wr(c, &up->kids, rd(c, &up->kids) + 1);
    wrw(c, &k->state, (state & ~INT64_C(15)) | ARM_WAITING);
    /* Demoted interactive work gives way to that of others, not to the agents and the aged work of the level below. */
    queue_add(c, t, flags & ARM_F_RESUMED || (policy == ARM_MLFQ && klass == ARM_INTERACTIVE && level));
    child_wait(c, t);
    int32_t mark = c->granted;
    dispatch(c, domain);
    for (int32_t i = mark; i < c->granted; i++) {
        if (c->io.granted[i] != handle) continue;
        memmove(&c->io.granted[i], &c->io.granted[i + 1], sizeof(int64_t) * (size_t)(c->granted - i - 1));
        c->granted--;
        return handle << 1 | 1;
    }
    return handle << 1;
}

static int64_t cancel_body(arm_ctx *c, const int64_t *args);

/* Takes a grant out of the mailbox: its owner learns of it in another way. */
static int64_t fetch_body(arm_ctx *c, const int64_t *args) {
    int64_t state;
    arm_ticket *k = live(c, args[0], &state);
    if (!k || !(rd(c, &k->meta) & META_MAILED)) return ARM_OK;
    mail_drop(c, handle_index(args[0]));
    wr(c, &k->meta, rd(c, &k->meta) & ~META_MAILED);
    return ARM_OK;
}

int64_t arm_submit(arm_ctx *c, int64_t who, int64_t tokens, int64_t now_ns) {
    ARM_IF_PRIVATE(c, arm_private_submit(c, who, tokens, now_ns));
    arm_request *q = &c->io.req;
    uint32_t p = who & 1023;
    int64_t rc = ARM_E_ARGUMENT;
    c->io.n_granted = c->io.n_wake = 0;
    c->io.next_due_ns = -1;
    if (who < 0 || p >= c->arena->config.pools || !pool(c, p)->config.lanes || tokens < 0 || tokens > UINT32_MAX) goto out;
    if ((uint32_t)(who >> 10 & 3) > ARM_BACKGROUND || (who >> 40 & 0xfff) >= c->arena->config.scopes) goto out;
    if (q->idle_us < 0 || q->run_us < 0 || q->memory < 0 || q->memory > BIAS || q->key < 0 || q->key > (int64_t)WIDE_MASK ||
        q->level < 0 || q->level > 2)
        goto out;
    if (!c->ncache) {
        uint32_t slots[ARM_CLAIM];
        int64_t n = arm_run(c, claim_body, (int64_t[]){(int64_t)(uintptr_t)slots}, now_ns);
        for (int64_t i = 0; i < n; i++) c->cache[c->ncache++] = slots[n - 1 - i];
        rc = ARM_E_FULL;
        if (n <= 0) goto out;
    }
    uint32_t domain = pool(c, p)->config.domain;
    rc = arm_run(c, submit_body, (int64_t[]){who, tokens}, now_ns);
    if (rc >= 0) {
        c->ncache--;
        bool more = c->more;
        if (!(rc & 1) && (who >> 12 & ARM_F_TRY)) {
            int64_t due = c->io.next_due_ns;
            if (run_and_dispatch(c, cancel_body, (int64_t[]){rc >> 1, 0, 0}, now_ns, domain) == ARM_E_STATE) {
                arm_run(c, fetch_body, (int64_t[]){rc >> 1}, now_ns); /* another participant granted it just now */
                if (more) dispatch_rest(c, now_ns, domain);
                rc |= 1;
                goto out;
            }
            keep_slot(c);
            c->io.next_due_ns = due;
            rc = ARM_E_QUEUE;
        } else if (more) {
            dispatch_rest(c, now_ns, domain);
        }
    }
out:
    memset(q, 0, sizeof *q);
    return rc;
}

/* --- the ends of a ticket --- */

static int64_t settle_body(arm_ctx *c, const int64_t *args) {
    int64_t state;
    arm_ticket *k = live(c, args[0], &state);
    int st = k ? state_of(state) : 0;
    if (st != ARM_RUNNING && st != ARM_ZOMBIE) return ARM_E_STALE;
    uint32_t t = handle_index(args[0]), m = rd(c, &k->meta), p = meta_pool(m);
    int64_t tokens = args[1] >> 2, who = rdw(c, &k->who), lane = c->now - rdw(c, &k->granted);
    bool refund = (args[1] & 3) == ARM_REFUND;
    uint32_t a = who_agent(who), policy = rd(c, &pool(c, p)->policy);
    if (lane < 0) lane = 0;
    limits_settle(c, t, tokens, refund);
    int64_t charged = rdw(c, &k->cost), cost; /* 0 if it never queued */
    if (st == ARM_ZOMBIE) {
        wr(c, &pool(c, p)->dead, rd(c, &pool(c, p)->dead) - 1);
        cost = max64(charged, refund ? 0 : queue_memory_cost(c, t, lane)); /* that it held until now */
    } else {
        lane_give_back(c, t);
        child_ended(c, k);
        if (!refund) {
            cell *e = &pool(c, p)->ewma;
            int64_t usual = (int64_t)atomic_load_explicit(e, memory_order_relaxed);
            atomic_store_explicit(e, (uint64_t)(usual ? usual + (lane - usual) / 8 : lane), memory_order_relaxed);
            if (policy == ARM_MLFQ) queue_usage(c, a, meta_class(m), rdw(c, &k->submitted), lane, tokens);
        }
        cost = refund ? 0 : queue_cost(c, t, m, tokens, lane);
        if ((args[1] & 3) == ARM_DONE) {
            scope_succeeded(c, who_scope(who));
            if (pool(c, p)->config.account_scope >= 0) scope_succeeded(c, (uint32_t)pool(c, p)->config.account_scope);
        }
    }
    if (charged || rd(c, &pool(c, p)->waiting)) queue_adjust(c, t, cost - charged);
    arm_note(c, st == ARM_ZOMBIE ? ARM_EV_ZOMBIE_END : ARM_EV_SETTLE, args[0], a, p, meta_level(m), lane << 2 | (args[1] & 3));
    slot_release(c, t, args[2]);
    dispatch(c, pool(c, p)->config.domain);
    return ARM_OK;
}

static uint32_t domain_of(arm_ctx *c, int64_t handle) {
    uint32_t i = handle_index(handle);
    if (handle <= 0 || i >= c->arena->config.tickets) return 0;
    uint32_t p = meta_pool((uint32_t)atomic_load_explicit(&ticket(c, i)->meta, memory_order_acquire));
    return p < c->arena->config.pools ? pool(c, p)->config.domain : 0;
}

static int64_t end_ticket(arm_ctx *c, arm_body body, int64_t handle, int64_t how, int64_t now_ns) {
    c->io.n_granted = c->io.n_wake = 0;
    c->io.next_due_ns = -1;
    int64_t rc = run_and_dispatch(c, body, (int64_t[]){handle, how, 0}, now_ns, domain_of(c, handle));
    keep_slot(c);
    return rc < 0 ? rc : c->io.n_granted;
}

int64_t arm_settle(arm_ctx *c, int64_t handle, int64_t how, int64_t now_ns) {
    ARM_IF_PRIVATE(c, arm_private_settle(c, handle, how, now_ns));
    if (how < 0 || (how & 3) == 3 || how >> 2 > INT64_C(2000000000)) return ARM_E_ARGUMENT;
    return end_ticket(c, settle_body, handle, how, now_ns);
}

static int64_t cancel_body(arm_ctx *c, const int64_t *args) {
    int64_t state;
    arm_ticket *k = live(c, args[0], &state);
    if (!k || state_of(state) < ARM_WAITING) return ARM_E_STALE;
    if (state_of(state) != ARM_WAITING) return ARM_E_STATE;
    uint32_t t = handle_index(args[0]), m = rd(c, &k->meta);
    child_leave(c, t);
    child_ended(c, k);
    if (m & META_PARKED) scope_drop(c, t);
    else queue_remove(c, t);
    arm_note(c, ARM_EV_CANCEL, args[0], who_agent(rdw(c, &k->who)), meta_pool(m), meta_level(m), c->now - rdw(c, &k->submitted));
    slot_release(c, t, args[2]);
    dispatch(c, pool(c, meta_pool(m))->config.domain); /* it may have been the one that others waited behind */
    return ARM_OK;
}

int64_t arm_cancel(arm_ctx *c, int64_t handle, int64_t now_ns) {
    ARM_IF_PRIVATE(c, arm_private_cancel(c, handle, now_ns));
    return end_ticket(c, cancel_body, handle, 0, now_ns);
}

static int64_t reap_body(arm_ctx *c, const int64_t *args) {
    int64_t state;
    arm_ticket *k = live(c, args[0], &state);
    if (!k || state_of(state) != ARM_RUNNING) return ARM_E_STALE;
    uint32_t t = handle_index(args[0]), m = rd(c, &k->meta), p = meta_pool(m);
    lane_give_back(c, t);
    child_ended(c, k);
    wr(c, &pool(c, p)->dead, rd(c, &pool(c, p)->dead) + 1);
    wrw(c, &k->state, (state & ~INT64_C(15)) | ARM_ZOMBIE);
    arm_note(c, ARM_EV_REAP, args[0], who_agent(rdw(c, &k->who)), p, meta_level(m), c->now - rdw(c, &k->granted));
    dispatch(c, pool(c, p)->config.domain);
    return ARM_OK;
}

int64_t arm_reap(arm_ctx *c, int64_t handle, int64_t now_ns) {
    ARM_IF_PRIVATE(c, arm_private_reap(c, handle, now_ns));
    return end_ticket(c, reap_body, handle, 0, now_ns);
}

int arm_heartbeat(arm_ctx *c, int64_t handle, int64_t now_ns) {
    uint32_t i = handle_index(handle);
    if (handle <= 0 || i >= c->arena->config.tickets) return ARM_E_STALE;
    arm_ticket *k = ticket(c, i);
    int64_t state = (int64_t)(atomic_load_explicit(&k->state, memory_order_acquire) & WIDE_MASK);
    if (((state >> 4) & GEN_MASK) != handle_gen(handle) || state_of(state) != ARM_RUNNING) return ARM_E_STALE;
    int64_t epoch = c->arena->config.epoch_ns, now = now_ns > epoch ? (now_ns - epoch) / 1000 : 0;
    uint64_t w = atomic_load_explicit(&k->beat, memory_order_acquire);
    ARM_FAULT(STEP_HEARTBEAT);
    /* the generation in the word keeps a late heartbeat off the slot's next user; losing to another one is fine */
    if (w >> 48 == ((uint64_t)(state >> 4) & 0xffff) && (int64_t)(w & WIDE_MASK) < now)
        atomic_compare_exchange_strong_explicit(&k->beat, &w, (w & ~WIDE_MASK) | (uint64_t)now, memory_order_acq_rel,
                                                memory_order_acquire);
    return ARM_OK;
}

/* --- what a dead owner held --- */

/* Several may bury the same owner at once, and the first to finish frees its place for a new one. A claim word that
 * still is what it was after the transaction began means that the tickets that it sees are the dead one's. */
static bool claimed_as(arm_ctx *c, uint32_t who, uint64_t claim) {
    return atomic_load_explicit(&owner(c, who)->claim, memory_order_acquire) == claim;
}

static int64_t bury_body(arm_ctx *c, const int64_t *args) {
    uint32_t t = (uint32_t)args[0], who = (uint32_t)args[1];
    arm_ticket *k = ticket(c, t);
    int64_t state = rdw(c, &k->state), handle = make_handle(t, state);
    if (state_of(state) == ARM_FREE || who_owner(rdw(c, &k->who)) != who || !claimed_as(c, who, (uint64_t)args[2])) return 0;
    if (state_of(state) == ARM_CLAIMED) slot_release(c, t, true);
    else if (state_of(state) == ARM_WAITING) cancel_body(c, (int64_t[]){handle, 0, 1});
    else if (args[3]) settle_body(c, (int64_t[]){handle, (int64_t)rd(c, &k->tokens) << 2 | ARM_FAILED, 1});
    else return 0;
    return 1;
}

static int64_t gone_body(arm_ctx *c, const int64_t *args) {
    if (!claimed_as(c, (uint32_t)args[0], (uint64_t)args[1])) return 0;
    wr(c, &owner(c, (uint32_t)args[0])->mhead, 0);
    wr(c, &owner(c, (uint32_t)args[0])->mtail, 0);
    return 0;
}

/* What it waited for goes before what it held, so that no lane is handed to the dead. */
static int64_t bury(arm_ctx *c, uint32_t who, uint64_t claim, int64_t now_ns) {
    int64_t n = 0, high = arm_ticket_count(c);
    c->io.n_granted = c->io.n_wake = 0;
    c->io.next_due_ns = -1;
    for (int64_t held = 0; held < 2; held++)
        for (int64_t t = 0; t < high; t++) {
            if (c->io.n_granted == ARM_MAX_OUT) return n; /* the caller takes these and calls again */
            uint32_t domain = domain_of(c, t | INT64_C(1) << 24);
            n += run_and_dispatch(c, bury_body, (int64_t[]){t, who, (int64_t)claim, held}, now_ns, domain);
        }
    kv_bury(c, who, claim);
    arm_run(c, gone_body, (int64_t[]){who, (int64_t)claim}, now_ns);
    atomic_compare_exchange_strong_explicit(&owner(c, who)->claim, &claim, claim & ~UINT64_C(0xffffffff),
                                            memory_order_acq_rel, memory_order_acquire);
    return n;
}

int64_t arm_owner_dead(arm_ctx *c, int32_t who, int64_t pid, int64_t now_ns) {
    if (who < 0 || (uint32_t)who >= c->arena->config.owners || (uint32_t)who == c->slot) return ARM_E_ARGUMENT;
    uint64_t claim = atomic_load_explicit(&owner(c, (uint32_t)who)->claim, memory_order_acquire);
    c->io.n_granted = c->io.n_wake = 0;
    if (!pid || (uint32_t)claim != (uint64_t)pid) return 0;
    return bury(c, (uint32_t)who, claim, now_ns);
}

/* The participant's own tickets end with it. */
int arm_leave(arm_ctx *c, int64_t now_ns) {
    c->ncache = 0;
    do bury(c, c->slot, c->claim, now_ns);
    while (c->io.n_granted == ARM_MAX_OUT);
    return ARM_OK;
}
