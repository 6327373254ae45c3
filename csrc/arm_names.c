/* Names of tenants, agents and scopes to small integers, in the arena, so that all participants agree. */
#include "arm_internal.h"

typedef struct {
    const char *name;
    size_t length;
} arm_text;

static uint32_t hash_name(const char *s, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ? h : 1;
}

/* six bytes to a cell; the last of the sixty is always a terminator for shorter names */
static int64_t name_part(const char *s, size_t n, uint32_t i) {
    int64_t v = 0;
    for (uint32_t k = 0; k < 6; k++) {
        size_t at = i * 6 + k;
        if (at < n) v |= (int64_t)(unsigned char)s[at] << (8 * k);
    }
    return v;
}

static bool same_name(arm_ctx *c, cell *name, const arm_text *t) {
    for (uint32_t i = 0; i < ARM_NAME_CELLS; i++)
        if (rdw(c, &name[i]) != name_part(t->name, t->length, i)) return false;
    return true;
}

static void set_name(arm_ctx *c, cell *name, const arm_text *t) {
    for (uint32_t i = 0; i < ARM_NAME_CELLS; i++) wrw(c, &name[i], name_part(t->name, t->length, i));
}

static arm_text text_of(const int64_t *args) {
    return (arm_text){(const char *)(uintptr_t)args[0], (size_t)args[1]};
}

static int64_t find(arm_ctx *c, bool of_agents, cell *bucket, uint32_t h, const arm_text *t, uint32_t in_tenant) {
    for (uint32_t i = rd(c, bucket); i;) {
        arm_agent_rec *r = of_agents ? agent(c, i - 1) : tenant(c, i - 1);
        if (rd(c, &r->hash) == h && rd(c, &r->tenant) == in_tenant && same_name(c, r->name, t)) return i - 1;
        i = rd(c, &r->hnext);
    }
    return -1;
}

static int64_t tenant_body(arm_ctx *c, const int64_t *args) {
    arm_text t = text_of(args);
    uint32_t h = hash_name(t.name, t.length);
    cell *bucket = &c->arena->tenant_hash[h % 256];
    int64_t i = find(c, false, bucket, h, &t, 0);
    if (i < 0) {
        i = rd(c, &c->arena->n_tenants);
        if (i == c->arena->config.tenants) return ARM_E_FULL;
        wr(c, &c->arena->n_tenants, (uint32_t)i + 1);
        set_name(c, tenant(c, (uint32_t)i)->name, &t);
        wr(c, &tenant(c, (uint32_t)i)->hash, h);
        wr(c, &tenant(c, (uint32_t)i)->hnext, rd(c, bucket));
        wr(c, bucket, (uint32_t)i + 1);
        wr(c, &tenant(c, (uint32_t)i)->weight, args[2] ? (uint32_t)args[2] : 1024);
    } else if (args[2]) {
        wr(c, &tenant(c, (uint32_t)i)->weight, (uint32_t)args[2]);
    }
    return i;
}

static void unlink_agent(arm_ctx *c, uint32_t i) {
    arm_agent_rec *r = agent(c, i);
    cell *at = &c->arena->agent_hash[rd(c, &r->hash) % ARM_BUCKETS];
    while (rd(c, at) && rd(c, at) != i + 1) at = &agent(c, rd(c, at) - 1)->hnext;
    if (rd(c, at)) wr(c, at, rd(c, &r->hnext));
}

/* The table is full: the agent not seen for longest, among those without a live ticket, gives up its slot. What is lost
 * is its demotion and the quantum it used. Rare, so a look at every ticket is fine. */
static int64_t evict_agent(arm_ctx *c) {
    uint32_t n = c->arena->config.agents, high = rd(c, &c->arena->high_ticket);
    int64_t floor_ = -1;
    for (uint32_t attempt = 0; attempt < 64; attempt++) {
        int64_t best = -1, best_seen = INT64_MAX;
        for (uint32_t i = 0; i < n; i++) {
            int64_t seen = (int64_t)atomic_load_explicit(&agent(c, i)->seen, memory_order_relaxed);
            if (seen > floor_ && seen < best_seen) best = i, best_seen = seen;
        }
        if (best < 0) return -1;
        bool live = !kv_agent_idle(c, (uint32_t)best);
        for (uint32_t t = 0; t < high && !live; t++) {
            int s = state_of(rdw(c, &ticket(c, t)->state));
            live = s >= ARM_WAITING && who_agent(rdw(c, &ticket(c, t)->who)) == (uint32_t)best;
        }
        if (!live) return best;
        floor_ = best_seen;
    }
    return -1;
}

static int64_t agent_body(arm_ctx *c, const int64_t *args) {
    arm_text t = text_of(args);
    uint32_t in_tenant = (uint32_t)args[2];
    if (in_tenant >= rd(c, &c->arena->n_tenants)) return ARM_E_ARGUMENT;
    uint32_t h = hash_name(t.name, t.length) ^ in_tenant * 2654435761u;
    cell *bucket = &c->arena->agent_hash[h % ARM_BUCKETS];
    int64_t i = find(c, true, bucket, h, &t, in_tenant);
    if (i < 0) {
        i = rd(c, &c->arena->n_agents);
        if (i == c->arena->config.agents) {
            i = evict_agent(c);
            if (i < 0) return ARM_E_FULL;
            unlink_agent(c, (uint32_t)i);
            kv_agent_gone(c, (uint32_t)i);
            wr(c, &agent(c, (uint32_t)i)->tag, (rd(c, &agent(c, (uint32_t)i)->tag) + 1) & 0xff);
            for (int k = 0; k < 3; k++) wrw(c, &agent(c, (uint32_t)i)->used[k], 0);
        } else {
            wr(c, &c->arena->n_agents, (uint32_t)i + 1);
        }
        arm_agent_rec *r = agent(c, (uint32_t)i);
        set_name(c, r->name, &t);
        wr(c, &r->hash, h);
        wr(c, &r->tenant, in_tenant);
        wr(c, &r->hnext, rd(c, bucket));
        wr(c, bucket, (uint32_t)i + 1);
        wr(c, &r->weight, args[3] ? (uint32_t)args[3] : 1024);
    } else if (args[3]) {
        wr(c, &agent(c, (uint32_t)i)->weight, (uint32_t)args[3]);
    }
    atomic_store_explicit(&agent(c, (uint32_t)i)->seen, c->root >> 16, memory_order_relaxed);
    return i | (int64_t)rd(c, &agent(c, (uint32_t)i)->tag) << 36;
}

static int64_t scope_body(arm_ctx *c, const int64_t *args) {
    arm_text t = text_of(args);
    uint32_t h = hash_name(t.name, t.length);
    cell *bucket = &c->arena->scope_hash[h % 256];
    for (uint32_t i = rd(c, bucket); i; i = rd(c, &scope(c, i - 1)->hnext))
        if (rd(c, &scope(c, i - 1)->hash) == h && same_name(c, scope(c, i - 1)->name, &t)) return i - 1;
    uint32_t i = rd(c, &c->arena->n_scopes);
    if (i == c->arena->config.scopes) return ARM_E_FULL;
    wr(c, &c->arena->n_scopes, i + 1);
    set_name(c, scope(c, i)->name, &t);
    wr(c, &scope(c, i)->hash, h);
    wr(c, &scope(c, i)->hnext, rd(c, bucket));
    wr(c, bucket, i + 1);
    wr(c, &scope(c, i)->pool, (uint32_t)(args[2] + 1));
    if (args[2] >= 0) wr(c, &pool(c, (uint32_t)args[2])->nscopes, rd(c, &pool(c, (uint32_t)args[2])->nscopes) + 1);
    return i;
}

static int64_t name_body(arm_ctx *c, const int64_t *args) {
    uint32_t i = (uint32_t)args[1];
    cell *name;
    if (args[0] == 0 && i < rd(c, &c->arena->n_tenants)) name = tenant(c, i)->name;
    else if (args[0] == 1 && i < rd(c, &c->arena->n_agents)) name = agent(c, i)->name;
    else if (args[0] == 2 && i < rd(c, &c->arena->n_scopes)) name = scope(c, i)->name;
    else return ARM_E_ARGUMENT;
    char *out = (char *)(uintptr_t)args[2];
    for (uint32_t k = 0; k < ARM_NAME_CELLS; k++) {
        int64_t v = rdw(c, &name[k]);
        for (uint32_t b = 0; b < 6; b++) out[k * 6 + b] = (char)(v >> (8 * b));
    }
    return ARM_OK;
}

#define NAME_ARG (int64_t)(uintptr_t) name, (int64_t)length
static bool bad_name(const char *name, size_t length) { return !name || !length || length > 60; }

int64_t arm_tenant(arm_ctx *c, const char *name, size_t length, uint32_t weight_q10) {
    if (bad_name(name, length)) return ARM_E_ARGUMENT;
    return arm_run(c, tenant_body, (int64_t[]){NAME_ARG, weight_q10}, 0);
}

int64_t arm_agent(arm_ctx *c, const char *name, size_t length, uint32_t in_tenant, uint32_t weight_q10) {
    if (bad_name(name, length)) return ARM_E_ARGUMENT;
    return arm_run(c, agent_body, (int64_t[]){NAME_ARG, in_tenant, weight_q10}, 0);
}

int64_t arm_scope(arm_ctx *c, const char *name, size_t length, int32_t in_pool) {
    if (bad_name(name, length) || in_pool >= (int32_t)c->arena->config.pools) return ARM_E_ARGUMENT;
    return arm_run(c, scope_body, (int64_t[]){NAME_ARG, in_pool}, 0);
}

int arm_name(arm_ctx *c, int32_t kind, int32_t index, char *out60) {
    if (!out60 || index < 0) return ARM_E_ARGUMENT;
    return (int)arm_run(c, name_body, (int64_t[]){kind, index, (int64_t)(uintptr_t)out60}, 0);
}
