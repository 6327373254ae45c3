/* Transactions: how many words change at once without a lock.
 *
 * The root word is either quiescent (sequence, 0) or carries a published transaction (sequence + 1, participant + 1).
 * A transaction reads cells while the root stays what it was at the start (any change restarts it, so it never acts on
 * a torn state), keeps its writes in its participant's descriptor as (cell, old word, new word), and commits by
 * swapping the root from (s, 0) to (s + 1, me). From then on its writes are facts: its owner, or anybody who finds the
 * root in that state, applies them by compare-and-swap (each can succeed once only, since every word carries a
 * version) and sets the root to (s + 1, 0). Dying before the commit leaves nothing behind, dying after it leaves
 * work that the next participant finishes.
 *
 * Lock-free: a failed commit means that somebody else's succeeded. After "NOrec" (Dalessandro, Spear, Scott, PPoPP
 * 2010) for the single sequence and "OneFile" (Ramalhete et al., DSN 2019) for the helped redo log.
 *
 * A private arena (config.shared == 0) has one participant, whose calls its caller serialises (the GIL does). Nobody
 * else can be in the middle of anything, so the same bodies write their cells at once, without log and swaps: about a
 * third of the cost. It dies with its process.
 */
#include "arm_internal.h"

static void apply(arm_ctx *c, arm_desc *d, uint64_t expected) {
    arm_arena *a = c->arena;
    uint32_t n = (uint32_t)atomic_load_explicit(&d->count, memory_order_acquire);
    bool mine = d == c->desc;
    for (uint32_t i = 0; i < n && i < ARM_MAX_WRITES; i++) {
        uint64_t no = atomic_load_explicit(&d->write[i].cellno, memory_order_acquire);
        uint64_t old = atomic_load_explicit(&d->write[i].old, memory_order_acquire);
        uint64_t new_ = atomic_load_explicit(&d->write[i].new_, memory_order_acquire);
        /* A helper may be reading a descriptor that its owner is using anew: then the root has moved on. */
        if (!mine && atomic_load_explicit(&a->root, memory_order_acquire) != expected) return;
        ARM_FAULT(STEP_APPLY);
        atomic_compare_exchange_strong_explicit((cell *)(c->base + (no << 3)), &old, new_, memory_order_acq_rel,
                                                memory_order_acquire);
    }
    ARM_FAULT(STEP_RELEASE);
    atomic_compare_exchange_strong_explicit(&a->root, &expected, expected & ~UINT64_C(0xffff), memory_order_acq_rel,
                                            memory_order_acquire);
}

static void begin(arm_ctx *c) {
    arm_arena *a = c->arena;
    for (;;) {
        ARM_FAULT(STEP_READ_ROOT);
        uint64_t r = atomic_load_explicit(&a->root, memory_order_acquire);
        uint32_t busy = (uint32_t)(r & 0xffff);
        if (!busy) {
            c->root = r;
            break;
        }
        ARM_FAULT(STEP_HELP);
        apply(c, (arm_desc *)(c->base + a->descs) + (busy - 1), r);
    }
    c->nwrites = 0;
    if (++c->stamp > 0xffff) {
        memset(c->hash, 0, sizeof c->hash);
        c->stamp = 1;
    }
}

static bool commit(arm_ctx *c) {
    arm_arena *a = c->arena;
    if (!c->nwrites) return true; /* every read was checked against the same root */
    atomic_store_explicit(&c->desc->count, c->nwrites, memory_order_release);
    uint64_t expected = c->root, mine = (((c->root >> 16) + 1) << 16) | (c->slot + 1);
    ARM_FAULT(STEP_COMMIT);
    if (!atomic_compare_exchange_strong_explicit(&a->root, &expected, mine, memory_order_acq_rel,
                                                 memory_order_acquire))
        return false;
    apply(c, c->desc, mine);
    return true;
}

void log_word(arm_ctx *c, cell *p, uint64_t value, bool wide) {
    uint32_t no = cell_no(c, p), i = c->nwrites ? log_find(c, no) : 0;
    arm_write *w;
    if (i) {
        w = &c->desc->write[i - 1];
        uint64_t v = atomic_load_explicit(&w->new_, memory_order_relaxed);
        v = wide ? (v & ~WIDE_MASK) | value : (v & ~UINT64_C(0xffffffff)) | value;
        atomic_store_explicit(&w->new_, v, memory_order_release);
        return;
    }
    uint64_t old = atomic_load_explicit(p, memory_order_acquire);
    if (atomic_load_explicit(&c->arena->root, memory_order_relaxed) != c->root) longjmp(c->again, 1);
    if (c->nwrites == ARM_MAX_WRITES) longjmp(c->again, 2);
    w = &c->desc->write[c->nwrites++];
    atomic_store_explicit(&w->cellno, no, memory_order_release);
    atomic_store_explicit(&w->old, old, memory_order_release);
    atomic_store_explicit(&w->new_, wide ? ((old >> 48) + 1) << 48 | value : ((old >> 32) + 1) << 32 | value,
                          memory_order_release);
    uint32_t h = (no * 2654435761u) >> (32 - ARM_LOG_BITS);
    while ((c->hash[h] >> 16) == c->stamp) h = (h + 1) & (ARM_LOG_PLACES - 1);
    c->hash[h] = c->stamp << 16 | c->nwrites;
}

/* Each record is guarded by its own sequence word (odd while it is written), so a writer that dies in the middle costs
 * one event and never holds up a reader or another writer. */
static void record(arm_ctx *c, uint64_t n, const arm_noted *note) {
    arm_event_rec *e = (arm_event_rec *)(c->base + c->arena->events) + (n & c->arena->event_mask);
    ARM_FAULT(STEP_EVENT);
    atomic_store_explicit(&e->seq, n * 2 + 1, memory_order_release);
    atomic_store_explicit(&e->time, (uint64_t)c->now, memory_order_release);
    atomic_store_explicit(&e->what, note->what, memory_order_release);
    atomic_store_explicit(&e->handle, (uint64_t)note->handle, memory_order_release);
    atomic_store_explicit(&e->value, (uint64_t)note->value, memory_order_release);
    atomic_store_explicit(&e->seq, n * 2 + 2, memory_order_release);
}

#ifndef ARM_KV_ALONE
/* Events leave after the commit; in a private arena, where nothing is ever taken back, at once. */
void arm_note(arm_ctx *c, uint32_t kind, int64_t handle, uint32_t ag, uint32_t p, uint32_t level, int64_t value) {
    arm_noted note = {handle, value, (uint64_t)ag << 24 | (uint64_t)p << 8 | level << 4 | kind};
    if (!c->arena->config.events) return;
    if (ARM_DIRECT(c)) {
        uint64_t n = atomic_load_explicit(&c->arena->event_head, memory_order_relaxed);
        atomic_store_explicit(&c->arena->event_head, n + 1, memory_order_relaxed);
        record(c, n, &note);
    } else if (c->events < sizeof c->event / sizeof *c->event) {
        c->event[c->events++] = note;
    }
}
#endif

static void publish(arm_ctx *c) {
    uint64_t n = atomic_fetch_add_explicit(&c->arena->event_head, c->events, memory_order_acq_rel);
    for (uint32_t i = 0; i < c->events; i++) record(c, n + i, &c->event[i]);
}

static void start(arm_ctx *c) {
    c->granted = c->io.n_granted;
    c->woken = c->io.n_wake;
    c->events = 0;
    c->due = -1;
    c->freed = 0;
    c->more = false;
}

int64_t arm_run(arm_ctx *c, arm_body body, const int64_t *args, int64_t now_ns) {
    int64_t rc;
    c->now = now_ns < c->arena->config.epoch_ns ? 0 : (now_ns - c->arena->config.epoch_ns) / 1000;
    if (ARM_DIRECT(c)) {
        c->root = atomic_load_explicit(&c->arena->root, memory_order_relaxed);
        start(c);
        rc = body(c, args);
        atomic_store_explicit(&c->arena->root, c->root + (1 << 16), memory_order_relaxed);
    }
    while (!ARM_DIRECT(c)) {
        int jumped = setjmp(c->again);
        if (jumped == 2) { /* too much for one log: nothing was published, and nothing of the body stays */
            start(c);
            return ARM_E_FULL;
        }
        begin(c);
        start(c);
        rc = body(c, args);
        if (commit(c)) break;
    }
    c->io.n_granted = c->granted;
    c->io.n_wake = c->woken;
    if (c->due >= 0) {
        int64_t due = c->due * 1000 + c->arena->config.epoch_ns;
        if (c->io.next_due_ns < 0 || due < c->io.next_due_ns) c->io.next_due_ns = due;
    }
    if (c->events) publish(c);
    return rc;
}

int64_t arm_event_head(arm_ctx *c) { return (int64_t)atomic_load_explicit(&c->arena->event_head, memory_order_acquire); }

int64_t arm_events(arm_ctx *c, int64_t from, arm_event *out, int64_t space) {
    arm_arena *a = c->arena;
    int64_t head = arm_event_head(c), room = a->event_mask + INT64_C(1), n = 0;
    if (!a->config.events) return 0;
    if (head - from > room) from = head - room;
    for (; from < head && n < space; from++) {
        arm_event_rec *e = (arm_event_rec *)(c->base + a->events) + (from & a->event_mask);
        uint64_t s = (uint64_t)from * 2 + 2;
        if (atomic_load_explicit(&e->seq, memory_order_acquire) != s) continue;
        uint64_t what = atomic_load_explicit(&e->what, memory_order_acquire);
        arm_event ev = {.seq = from,
                        .time_ns = (int64_t)atomic_load_explicit(&e->time, memory_order_acquire) * 1000 + a->config.epoch_ns,
                        .handle = (int64_t)atomic_load_explicit(&e->handle, memory_order_acquire),
                        .agent = (int64_t)(what >> 24),
                        .pool = (int64_t)(what >> 8 & 0xffff),
                        .value = (int64_t)atomic_load_explicit(&e->value, memory_order_acquire),
                        .kind = (int32_t)(what & 15),
                        .level = (int32_t)(what >> 4 & 15)};
        if (atomic_load_explicit(&e->seq, memory_order_acquire) != s) continue;
        out[n++] = ev;
    }
    return n;
}
