/* The arena: how large it is, how it is laid out, and who takes part in it. */
#include "arm_internal.h"

#define MAGIC UINT64_C(0x61676e74726d3031)

static uint64_t align64(uint64_t n) { return (n + 63) & ~UINT64_C(63); }

static bool layout(const arm_config *f, arm_arena *a) {
    if (!f->tickets || f->tickets > 0x7fffff || !f->agents || f->agents > 0x7fffff || !f->tenants || f->tenants > 4096)
        return false;
    if (!f->pools || f->pools > 1000 || !f->scopes || f->scopes > 4000 || !f->owners || f->owners > 4000) return false;
    if (f->limits > 60000 || f->events > 1u << 30 || f->backfill_us < 0 || f->age_us < 0 || f->boost_us < 0) return false;
    if (f->kv_pools > 1000 || f->kv_blocks > ARM_KV_MAX_BLOCKS || f->kv_chains > 0x7fffff) return false;
    if (f->kv_pools && (f->kv_blocks < f->kv_pools || !f->kv_chains)) return false;
    uint64_t at = align64(sizeof(arm_arena));
    a->nflows = f->tickets * 2 + 2;
    while (a->event_mask + 1 < f->events) a->event_mask = a->event_mask << 1 | 1;
#define PLACE(field, type, count)                                                                                      \
    a->field = at;                                                                                                     \
    at = align64(at + sizeof(type) * (uint64_t)(count))
    PLACE(tickets, arm_ticket, f->tickets);
    PLACE(agents, arm_agent_rec, f->agents);
    PLACE(tenants, arm_agent_rec, f->tenants);
    PLACE(pools, arm_pool, f->pools);
    PLACE(limits, arm_limit, f->limits);
    PLACE(scopes, arm_scope_rec, f->scopes);
    PLACE(owners, arm_owner_rec, f->owners);
    PLACE(events, arm_event_rec, f->events ? a->event_mask + 1 : 0);
    PLACE(flows, arm_flow, a->nflows);
    PLACE(rings, cell, (uint64_t)f->ring_entries * 2);
    PLACE(descs, arm_desc, f->owners);
    while (f->kv_blocks && (a->kv_mask << 1 | 1) < f->kv_blocks) a->kv_mask = a->kv_mask << 1 | 1;
    PLACE(kv_pools, arm_kv_pool, f->kv_pools);
    PLACE(blocks, arm_block, f->kv_blocks);
    PLACE(kv_heap, cell, f->kv_blocks);
    PLACE(kv_buckets, cell, a->kv_mask + 1);
    PLACE(kv_charges, cell, (uint64_t)f->kv_pools * (f->agents + f->tenants));
    PLACE(chains, arm_chain, f->kv_chains);
#undef PLACE
    a->size = at;
    return at >> 3 <= 0xffffffff;
}

size_t arm_size(const arm_config *config) {
    arm_arena a;
    memset(&a, 0, sizeof a);
    return layout(config, &a) ? (size_t)a.size : 0;
}

size_t arm_ctx_size(void) { return sizeof(arm_ctx); }

int arm_init(void *memory, size_t size, const arm_config *config) {
    arm_arena *a = memory;
    size_t need = arm_size(config);
    if (!need || size < need || (uintptr_t)memory % 64 || a->magic) return ARM_E_ARGUMENT;
    layout(config, a);
    a->magic = MAGIC;
    a->version = ARM_VERSION;
    a->config = *config;
    return ARM_OK;
}

int arm_set_limit(void *memory, uint32_t index, const arm_limit_config *f) {
    arm_arena *a = memory;
    if (index >= a->config.limits || f->amount <= 0 || f->unit > ARM_MEMORY || f->shape > ARM_GAUGE)
        return ARM_E_ARGUMENT;
    arm_limit *l = (arm_limit *)((char *)memory + a->limits) + index;
    l->config = *f;
    l->most = f->shape == ARM_BUCKET ? f->burst : f->amount;
    if (f->shape == ARM_GAUGE) return f->amount < BIAS ? ARM_OK : ARM_E_ARGUMENT;
    if (f->window_us <= 0 || f->amount > INT64_C(2000000000)) return ARM_E_ARGUMENT;
    if (f->shape == ARM_ROLLING) {
        if (f->ring < 2 || (f->ring & (f->ring - 1)) || f->ring > a->config.ring_entries - a->ring_used)
            return ARM_E_ARGUMENT;
        l->ring = a->rings + (uint64_t)a->ring_used * 2 * sizeof(cell);
        a->ring_used += f->ring;
        return ARM_OK;
    }
    /* amount tokens per window_us: in units of which `num` come in a microsecond and `den` make a token */
    int64_t x = f->amount, y = f->window_us;
    while (y) {
        int64_t r = x % y;
        x = y;
        y = r;
    }
    l->num = f->amount / x;
    l->den = f->window_us / x;
    if (f->burst <= 0 || f->burst > INT64_C(2000000000)) return ARM_E_ARGUMENT;
    while (l->den > (BIAS >> 2) / f->burst || l->num > (INT64_C(1) << 31)) { /* keep the level within its cell */
        l->num = (l->num + 1) / 2;
        l->den = (l->den + 1) / 2;
    }
    l->full = f->burst * l->den;
    l->fill_us = l->full / l->num + 1;
    l->rise_us = BIAS / l->num;
    atomic_store_explicit(&l->level, (uint64_t)(l->full + BIAS), memory_order_release);
    return ARM_OK;
}

int arm_set_pool(void *memory, uint32_t index, const arm_pool_config *f) {
    arm_arena *a = memory;
    if (index >= a->config.pools || !f->lanes || f->lanes > 0x7fffff || f->nlimits > ARM_MAX_LIMITS || f->domain >= ARM_DOMAINS)
        return ARM_E_ARGUMENT;
    for (uint32_t i = 0; i < f->nlimits; i++)
        if (f->limits[i] >= a->config.limits) return ARM_E_ARGUMENT;
    if (f->policy > ARM_CUSTOM || f->account_scope >= (int32_t)a->config.scopes) return ARM_E_ARGUMENT;
    arm_pool *p = (arm_pool *)((char *)memory + a->pools) + index;
    for (uint32_t at = a->domain_first[f->domain], n = 0; at; n++) {
        if (at - 1 == index || n == 63) return ARM_E_ARGUMENT;
        at = ((arm_pool *)((char *)memory + a->pools) + (at - 1))->domain_next;
    }
    p->config = *f;
    p->domain_next = a->domain_first[f->domain];
    a->domain_first[f->domain] = index + 1;
    atomic_store_explicit(&p->policy, f->policy, memory_order_release);
    return ARM_OK;
}

int arm_set_kv(void *memory, uint32_t index, const arm_kv_config *f) {
    arm_arena *a = memory;
    if (index >= a->config.kv_pools || !f->blocks || f->blocks > a->config.kv_blocks - a->kv_given) return ARM_E_ARGUMENT;
    if (!f->block_tokens || f->block_tokens > 0xffffff) return ARM_E_ARGUMENT;
    arm_kv_pool *p = (arm_kv_pool *)((char *)memory + a->kv_pools) + index;
    if (p->config.blocks) return ARM_E_ARGUMENT;
    p->config = *f;
    p->index = index;
    p->first = a->kv_given;
    a->kv_given += f->blocks;
    return ARM_OK;
}

static int64_t join(arm_ctx *c, const int64_t *args) {
    arm_owner_rec *o = owner(c, c->slot);
    wrw(c, &o->pid, args[0]);
    wrw(c, &o->started, args[1]);
    wrw(c, &o->wake, args[2]);
    wr(c, &o->mhead, 0);
    wr(c, &o->mtail, 0);
    return ARM_OK;
}

int arm_join(arm_ctx *c, void *memory, size_t size, int64_t pid, int64_t started, int64_t wake_token) {
    arm_arena *a = memory;
    if ((uintptr_t)memory % 64 || size < sizeof *a || pid <= 0 || pid > UINT32_MAX) return ARM_E_ARGUMENT;
    if (a->magic != MAGIC || a->version != ARM_VERSION || size < a->size) return ARM_E_VERSION;
    memset(c, 0, sizeof *c);
    c->base = memory;
    c->arena = a;
    c->tickets = (arm_ticket *)(c->base + a->tickets);
    c->flows = (arm_flow *)(c->base + a->flows);
    c->pools = (arm_pool *)(c->base + a->pools);
    c->limits = (arm_limit *)(c->base + a->limits);
    c->scopes = (arm_scope_rec *)(c->base + a->scopes);
    c->agents = (arm_agent_rec *)(c->base + a->agents);
    c->tenants = (arm_agent_rec *)(c->base + a->tenants);
    c->owners = (arm_owner_rec *)(c->base + a->owners);
    c->kv_pools = (arm_kv_pool *)(c->base + a->kv_pools);
    c->blocks = (arm_block *)(c->base + a->blocks);
    c->kv_heap = (cell *)(c->base + a->kv_heap);
    c->kv_buckets = (cell *)(c->base + a->kv_buckets);
    c->kv_charges = (cell *)(c->base + a->kv_charges);
    c->chains = (arm_chain *)(c->base + a->chains);
    /* A slot is taken by a swap of its own, since a transaction needs the slot's descriptor already. A transaction that
     * a dead user of the slot left published is finished by the first begin(). */
    uint32_t slots = a->config.shared ? a->config.owners : 1;
    c->direct = !a->config.shared;
    for (uint32_t i = 0; i < slots && !c->desc; i++) {
        uint64_t before = atomic_load_explicit(&owner(c, i)->claim, memory_order_acquire);
        c->claim = ((before >> 32) + 1) << 32 | (uint64_t)pid;
        if ((uint32_t)before || !atomic_compare_exchange_strong_explicit(&owner(c, i)->claim, &before, c->claim,
                                                                         memory_order_acq_rel, memory_order_acquire))
            continue;
        c->slot = i;
        c->desc = (arm_desc *)(c->base + a->descs) + i;
    }
    if (!c->desc) return ARM_E_FULL;
    c->io.next_due_ns = -1;
    return (int)arm_run(c, join, (int64_t[]){pid, started, wake_token}, a->config.epoch_ns);
}

arm_io *arm_io_of(arm_ctx *c) { return &c->io; }
int arm_owner_slot(arm_ctx *c) { return (int)c->slot; }
