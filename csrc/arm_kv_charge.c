/* Who is charged for how many blocks, and the quotas. A charge cell of an agent or tenant in a pool is
 * charged:24 | quota:24, quota 0 being none. */
#include "arm_kv_internal.h"

cell *charge_cell(arm_ctx *c, arm_kv_pool *p, bool of_tenant, uint32_t index) {
    const arm_config *f = &c->arena->config;
    return c->kv_charges + (uint64_t)p->index * (f->agents + f->tenants) + (of_tenant ? f->agents : 0) + index;
}

static inline uint32_t tenant_of(arm_ctx *c, uint32_t a) { return rd(c, &agent(c, a)->tenant); }

static inline void add_charge(arm_ctx *c, arm_kv_pool *p, bool of_tenant, uint32_t index, int64_t n) {
    add(c, charge_cell(c, p, of_tenant, index), n * (INT64_C(1) << 24));
}

void charge(arm_ctx *c, arm_kv_pool *p, int64_t to, int64_t n) {
    if (!to || !n) return;
    bool of_tenant = to >> 24 == 2;
    uint32_t index = LOW24(to);
    add_charge(c, p, of_tenant, index, n);
    if (!of_tenant) add_charge(c, p, true, tenant_of(c, index), n);
}

static int64_t room_of(arm_ctx *c, arm_kv_pool *p, bool of_tenant, uint32_t index) {
    int64_t w = rdw(c, charge_cell(c, p, of_tenant, index));
    return LOW24(w) ? (int64_t)LOW24(w) - HIGH24(w) : INT64_MAX;
}

/* How many more blocks may be charged to the agent; `which` is the code of the quota that says so. */
int64_t charge_room(arm_ctx *c, arm_kv_pool *p, uint32_t a, int *which) {
    int64_t own = room_of(c, p, false, a), all = room_of(c, p, true, tenant_of(c, a));
    *which = own <= all ? ARM_E_QUOTA_AGENT : ARM_E_QUOTA_TENANT;
    return max64(0, min64(own, all));
}

/* A chain of the agent uses block b too, which is in use. False: b was charged so that it covers the agent already, and
 * so was all that it is built on. */
bool charge_join(arm_ctx *c, arm_kv_pool *p, uint32_t b, uint32_t a) {
    int64_t to = rdw(c, &block(c, b)->value), mine = TO_TENANT(tenant_of(c, a)), theirs;
    if (!to || to == TO_AGENT(a) || to == mine) return false;
    theirs = to >> 24 == 1 ? TO_TENANT(tenant_of(c, LOW24(to))) : to;
    charge(c, p, to, -1);
    charge(c, p, theirs == mine ? mine : 0, 1);
    wrw(c, &block(c, b)->value, theirs == mine ? mine : 0);
    return true;
}
