/* Owners (participants) and their mailboxes. */
#include "arm_internal.h"

static int64_t poll_body(arm_ctx *c, const int64_t *args) {
    (void)args;
    arm_owner_rec *o = owner(c, c->slot);
    uint32_t t = rd(c, &o->mhead);
    int n = 0;
    while (t && n < 16 && c->granted < ARM_MAX_OUT) {
        arm_ticket *k = ticket(c, t - 1);
        int64_t state = rdw(c, &k->state);
        c->io.granted[c->granted++] = make_handle(t - 1, state);
        wr(c, &k->meta, rd(c, &k->meta) & ~META_MAILED);
        t = rd(c, &k->mail);
        n++;
    }
    if (n) {
        wr(c, &o->mhead, t);
        if (!t) wr(c, &o->mtail, 0);
    }
    return t != 0;
}

/* A grant that ends before its owner fetched it leaves the mailbox. */
void mail_drop(arm_ctx *c, uint32_t t) {
    arm_owner_rec *o = owner(c, who_owner(rdw(c, &ticket(c, t)->who)));
    uint32_t before = 0, at = rd(c, &o->mhead);
    while (at && at != t + 1) before = at, at = rd(c, &ticket(c, at - 1)->mail);
    if (!at) return;
    uint32_t next = rd(c, &ticket(c, t)->mail);
    wr(c, before ? &ticket(c, before - 1)->mail : &o->mhead, next);
    if (!next) wr(c, &o->mtail, before);
}

int64_t arm_poll(arm_ctx *c) {
    c->io.n_granted = c->io.n_wake = 0;
    while (arm_run(c, poll_body, NULL, 0) > 0 && c->io.n_granted < ARM_MAX_OUT) continue;
    return c->io.n_granted;
}

int arm_owner_info(arm_ctx *c, int32_t who, int64_t *pid, int64_t *started, int64_t *wake_token) {
    if (who < 0 || (uint32_t)who >= c->arena->config.owners) return ARM_E_ARGUMENT;
    arm_owner_rec *o = owner(c, (uint32_t)who);
    *pid = (int64_t)(uint32_t)atomic_load_explicit(&o->claim, memory_order_acquire);
    if (!*pid) return ARM_E_STALE;
    *started = (int64_t)(atomic_load_explicit(&o->started, memory_order_acquire) & WIDE_MASK);
    *wake_token = (int64_t)(atomic_load_explicit(&o->wake, memory_order_acquire) & WIDE_MASK);
    return ARM_OK;
}
