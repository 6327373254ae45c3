/* The queue: levels, in each level tenants in order of virtual start, in each tenant its agents likewise, in each
 * agent's flow its tickets in order of arrival. The ordered sets are skip lists (expected constant number of writes for
 * an insertion or removal, logarithmic reads); a flow that has nothing waiting stays in the hash table as long as its
 * virtual finish is ahead of the virtual time, since that is all there is to remember of it. */
#include "arm_internal.h"

enum { SHARED_FLOW = 0xffffff }; /* the one flow of fifo and priority */

/* --- skip list of flows, by (start, arrival) --- */

static cell *link_at(arm_ctx *c, cell *head, uint32_t after, uint32_t h) {
    return after ? &flow(c, after - 1)->tower[h] : &head[h];
}

static bool before(arm_ctx *c, uint32_t f, int64_t start, int64_t arrival) {
    int64_t s = rdw(c, &flow(c, f)->start);
    return s < start || (s == start && rdw(c, &flow(c, f)->arrival) < arrival);
}

static uint32_t tower_height(uint32_t f, int64_t start) {
    uint32_t x = (uint32_t)start * 2654435761u ^ f * 2246822519u, h = 1;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    for (; h < ARM_TOWER && (x & 3) == 0; x >>= 2) h++;
    return h;
}

static void predecessors(arm_ctx *c, cell *head, int64_t start, int64_t arrival, uint32_t pred[ARM_TOWER]) {
    uint32_t at = 0;
    for (int h = ARM_TOWER - 1; h >= 0; h--) {
        for (;;) {
            uint32_t next = rd(c, link_at(c, head, at, (uint32_t)h));
            if (!next || !before(c, next - 1, start, arrival)) break;
            at = next;
        }
        pred[h] = at;
    }
}

static void ordered_insert(arm_ctx *c, cell *head, uint32_t f, int64_t start, int64_t arrival) {
    arm_flow *n = flow(c, f);
    uint32_t pred[ARM_TOWER], height = tower_height(f, start);
    wrw(c, &n->start, start);
    wrw(c, &n->arrival, arrival);
    wr(c, &n->height, height);
    predecessors(c, head, start, arrival, pred);
    for (uint32_t h = 0; h < height; h++) {
        cell *from = link_at(c, head, pred[h], h);
        wr(c, &n->tower[h], rd(c, from));
        wr(c, from, f + 1);
    }
}

static void ordered_remove(arm_ctx *c, cell *head, uint32_t f) {
    arm_flow *n = flow(c, f);
    uint32_t pred[ARM_TOWER], height = rd(c, &n->height);
    predecessors(c, head, rdw(c, &n->start), rdw(c, &n->arrival), pred);
    for (uint32_t h = 0; h < height; h++) wr(c, link_at(c, head, pred[h], h), rd(c, &n->tower[h]));
    wr(c, &n->height, 0);
}

/* --- flows by key --- */

static uint32_t flow_bucket(int64_t id) {
    uint64_t x = (uint64_t)id * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(x >> 52) % ARM_BUCKETS;
}

static int64_t flow_find(arm_ctx *c, int64_t id) {
    for (uint32_t f = rd(c, &c->arena->flow_hash[flow_bucket(id)]); f; f = rd(c, &flow(c, f - 1)->hnext))
        if (rdw(c, &flow(c, f - 1)->id) == id) return f - 1;
    return -1;
}

static void flow_forget(arm_ctx *c, uint32_t f) {
    cell *at = &c->arena->flow_hash[flow_bucket(rdw(c, &flow(c, f)->id))];
    while (rd(c, at) && rd(c, at) != f + 1) at = &flow(c, rd(c, at) - 1)->hnext;
    if (rd(c, at)) wr(c, at, rd(c, &flow(c, f)->hnext));
    wrw(c, &flow(c, f)->id, 0);
}

static int64_t id_of(uint32_t p, uint32_t level, bool of_tenant, uint32_t who) {
    return 1 + (((int64_t)p << 2 | level) << 26 | (int64_t)of_tenant << 25 | who);
}

static int64_t list_time(arm_ctx *c, uint32_t f) {
    uint32_t up = rd(c, &flow(c, f)->parent);
    if (up) return rdw(c, &flow(c, up - 1)->vtime);
    int64_t id = rdw(c, &flow(c, f)->id) - 1;
    return rdw(c, &pool(c, (uint32_t)(id >> 28 & 1023))->level[id >> 26 & 3].vtime);
}

/* Whether nothing waits in it: a flow is in an ordered set exactly while something does. */
static bool idle(arm_ctx *c, uint32_t f) { return !rd(c, &flow(c, f)->height); }

/* All flows are in use: take back an idle one, at best one whose finish has passed, of which nothing is lost. Each
 * waiting ticket uses at most two flows and there are more than twice as many flows as tickets. A tenant's flow goes
 * after its agents' flows: those keep its number. */
static uint32_t flow_reclaim(arm_ctx *c) {
    uint32_t n = c->arena->nflows, hand = rd(c, &c->arena->flow_hand) % n, second = n;
    for (uint32_t k = 0; k < n; k++, hand = (hand + 1) % n) {
        if (!rdw(c, &flow(c, hand)->id) || !idle(c, hand) || rd(c, &flow(c, hand)->members)) continue;
        if (rdw(c, &flow(c, hand)->finish) <= list_time(c, hand)) {
            second = hand;
            break;
        }
        if (second == n) second = hand;
        if (k > 256 && second != n) break;
    }
    uint32_t up = rd(c, &flow(c, second)->parent);
    if (up) wr(c, &flow(c, up - 1)->members, rd(c, &flow(c, up - 1)->members) - 1);
    flow_forget(c, second);
    wr(c, &c->arena->flow_hand, (second + 1) % n);
    return second;
}

static uint32_t flow_get(arm_ctx *c, int64_t id, uint32_t up) {
    int64_t found = flow_find(c, id);
    if (found >= 0) return (uint32_t)found;
    uint32_t f = rd(c, &c->arena->high_flow);
    if (f < c->arena->nflows) wr(c, &c->arena->high_flow, f + 1);
    else f = flow_reclaim(c);
    arm_flow *n = flow(c, f);
    cell *bucket = &c->arena->flow_hash[flow_bucket(id)];
    wrw(c, &n->id, id);
    wr(c, &n->parent, up);
    if (up) wr(c, &flow(c, up - 1)->members, rd(c, &flow(c, up - 1)->members) + 1);
    wrw(c, &n->finish, 0);
    wrw(c, &n->vtime, 0);
    wrw(c, &n->adjust, BIAS);
    wr(c, &n->hnext, rd(c, bucket));
    wr(c, bucket, f + 1);
    return f;
}

/* --- doubly linked lists of tickets --- */

static void list_append(arm_ctx *c, cell *head, cell *tail, uint32_t t, size_t next, size_t prev) {
#define LINK(i, off) ((cell *)((char *)ticket(c, (i) - 1) + (off)))
    uint32_t last = rd(c, tail);
    wr(c, LINK(t + 1, next), 0);
    wr(c, LINK(t + 1, prev), last);
    wr(c, last ? LINK(last, next) : head, t + 1);
    wr(c, tail, t + 1);
}

static void list_unlink(arm_ctx *c, cell *head, cell *tail, uint32_t t, size_t next, size_t prev) {
    uint32_t n = rd(c, LINK(t + 1, next)), p = rd(c, LINK(t + 1, prev));
    wr(c, p ? LINK(p, next) : head, n);
    wr(c, n ? LINK(n, prev) : tail, p);
#undef LINK
}

#define QUEUE offsetof(arm_ticket, qnext), offsetof(arm_ticket, qprev)
#define AGES offsetof(arm_ticket, anext), offsetof(arm_ticket, aprev)

/* --- entering and leaving --- */

void count_waiting(arm_ctx *c, uint32_t p, int by) {
    wr(c, &pool(c, p)->waiting, rd(c, &pool(c, p)->waiting) + (uint32_t)by);
    cell *d = &c->arena->domain_waiting[pool(c, p)->config.domain];
    wr(c, d, rd(c, d) + (uint32_t)by);
}

typedef struct {
    uint32_t tenant_flow, agent_flow;
} arm_path;

/* A flow stays under the tenant's flow that it was made for. So an agent has one for its turns (rr) and one under its
 * tenant, and the tag keeps the next agent that gets the slot, maybe of another tenant, out of both. */
static int64_t own_id(arm_ctx *c, uint32_t t, bool of_tenant) {
    uint32_t m = rd(c, &ticket(c, t)->meta), who;
    int64_t tag = 0;
    if (of_tenant) {
        bool shared = m & (META_FLAT | META_TURN | META_CUSTOM);
        who = shared ? SHARED_FLOW : rd(c, &agent(c, who_agent(rdw(c, &ticket(c, t)->who)))->tenant);
    } else {
        uint32_t a = who_agent(rdw(c, &ticket(c, t)->who));
        who = m & META_CUSTOM ? t | 1u << 24 : m & META_FLAT ? SHARED_FLOW : m & META_TURN ? a | 1u << 23 : a;
        if (!(m & (META_CUSTOM | META_FLAT))) tag = rd(c, &agent(c, a)->tag) & 0xff;
    }
    return id_of(meta_pool(m), meta_level(m), of_tenant, who) + (tag << 38);
}

/* Each agent remembers where it queued last. */
static int64_t own_flow(arm_ctx *c, uint32_t t, int64_t own) {
    cell *hint = &agent(c, who_agent(rdw(c, &ticket(c, t)->who)))->hint;
    uint32_t last = (uint32_t)atomic_load_explicit(hint, memory_order_relaxed);
    if (rdw(c, &flow(c, last)->id) == own) return last;
    int64_t found = flow_find(c, own);
    if (found >= 0) atomic_store_explicit(hint, (uint64_t)found, memory_order_relaxed);
    return found;
}

/* The flows a ticket queues in, made when new. */
static arm_path path_make(arm_ctx *c, uint32_t t) {
    int64_t own = own_id(c, t, false), found = own_flow(c, t, own);
    if (found >= 0) return (arm_path){rd(c, &flow(c, (uint32_t)found)->parent) - 1, (uint32_t)found};
    uint32_t tf = flow_get(c, own_id(c, t, true), 0);
    wr(c, &flow(c, tf)->members, rd(c, &flow(c, tf)->members) + 1); /* not to be reclaimed for its own member */
    uint32_t af = flow_get(c, own, tf + 1);
    wr(c, &flow(c, tf)->members, rd(c, &flow(c, tf)->members) - 1);
    return (arm_path){tf, af};
}

static int64_t next_start(arm_ctx *c, uint32_t f, int64_t vtime) {
    return max64(1, max64(vtime, rdw(c, &flow(c, f)->finish)));
}

void queue_add(arm_ctx *c, uint32_t t, bool front) {
    arm_ticket *k = ticket(c, t);
    uint32_t m = rd(c, &k->meta), p = meta_pool(m);
    arm_path at = path_make(c, t);
    arm_flow *af = flow(c, at.agent_flow), *tf = flow(c, at.tenant_flow);
    arm_level *level = &pool(c, p)->level[meta_level(m)];
    int64_t arrival = rdw(c, &k->arrival);
    bool a_idle = idle(c, at.agent_flow), t_idle = idle(c, at.tenant_flow);
    if (front) m |= META_FRONT;
    else m &= ~META_FRONT;
    wr(c, &k->flow, at.agent_flow + 1);
    if (front) list_append(c, &af->fhead, &af->ftail, t, QUEUE);
    else list_append(c, &af->qhead, &af->qtail, t, QUEUE);
    /* One at the front starts before everybody of its level; a flow that is there already stays where it is. */
    if (a_idle || (front && rdw(c, &af->start))) {
        int64_t start = front ? 0 : next_start(c, at.agent_flow, rdw(c, &tf->vtime));
        if (m & META_CUSTOM) start = front ? 0 : rdw(c, &k->key);
        if (!a_idle) ordered_remove(c, tf->child, at.agent_flow);
        ordered_insert(c, tf->child, at.agent_flow, start, front ? rdw(c, &ticket(c, rd(c, &af->fhead) - 1)->arrival) : arrival);
    }
    if (t_idle || (front && (rdw(c, &tf->start) || arrival < rdw(c, &tf->arrival)))) {
        int64_t start = front ? 0 : next_start(c, at.tenant_flow, rdw(c, &level->vtime));
        int64_t order = t_idle ? arrival : min64(arrival, rdw(c, &tf->arrival));
        if (!t_idle) ordered_remove(c, level->head, at.tenant_flow);
        ordered_insert(c, level->head, at.tenant_flow, start, order);
    }
    bool demoted = meta_level(m) > meta_class(m) && c->arena->config.boost_us;
    m &= ~(META_LISTED | META_AGED);
    if (!(m & META_CUSTOM) && (demoted || (meta_level(m) == 2 && c->arena->config.age_us))) {
        m |= META_LISTED | (demoted ? 0 : META_AGED);
        wrw(c, &k->granted, c->now); /* while waiting: since when at this level */
        if (demoted) list_append(c, &pool(c, p)->dhead, &pool(c, p)->dtail, t, AGES);
        else list_append(c, &pool(c, p)->ahead, &pool(c, p)->atail, t, AGES);
    }
    wr(c, &k->meta, m);
    count_waiting(c, p, 1);
}

/* Takes the ticket out of its lists; the flows keep their places. Returns their numbers. */
static arm_path take_out(arm_ctx *c, uint32_t t) {
    arm_ticket *k = ticket(c, t);
    uint32_t m = rd(c, &k->meta), p = meta_pool(m), a = rd(c, &k->flow) - 1, u = rd(c, &flow(c, a)->parent) - 1;
    arm_flow *af = flow(c, a);
    if (m & META_FRONT) list_unlink(c, &af->fhead, &af->ftail, t, QUEUE);
    else list_unlink(c, &af->qhead, &af->qtail, t, QUEUE);
    if (m & META_LISTED) {
        if (m & META_AGED) list_unlink(c, &pool(c, p)->ahead, &pool(c, p)->atail, t, AGES);
        else list_unlink(c, &pool(c, p)->dhead, &pool(c, p)->dtail, t, AGES);
        wr(c, &k->meta, m & ~META_LISTED);
    }
    count_waiting(c, p, -1);
    return (arm_path){u, a};
}

/* The flow's place after its head changed: out of the set if `empty`, else at `start`. Alone in its set, or still
 * before the next one, it stays where it is. */
static void replace(arm_ctx *c, cell *head, uint32_t f, bool empty, int64_t start, int64_t arrival) {
    arm_flow *n = flow(c, f);
    uint32_t next = rd(c, &n->tower[0]);
    if (!empty && rd(c, &head[0]) == f + 1 && (!next || !before(c, next - 1, start, arrival))) {
        wrw(c, &n->start, start);
        wrw(c, &n->arrival, arrival);
        return;
    }
    ordered_remove(c, head, f);
    if (!empty) ordered_insert(c, head, f, start, arrival);
}

static int64_t first_arrival(arm_ctx *c, uint32_t agent_flow) {
    uint32_t t = flow_first(c, agent_flow);
    return t ? rdw(c, &ticket(c, t - 1)->arrival) : 0;
}

static int64_t tenant_arrival(arm_ctx *c, uint32_t tenant_flow) {
    uint32_t f = rd(c, &flow(c, tenant_flow)->child[0]);
    return f ? rdw(c, &flow(c, f - 1)->arrival) : 0;
}

static void place_agent(arm_ctx *c, arm_path at) {
    arm_flow *af = flow(c, at.agent_flow), *tf = flow(c, at.tenant_flow);
    bool empty = !flow_first(c, at.agent_flow), front = rd(c, &af->fhead) != 0;
    int64_t start = empty || front ? 0 : next_start(c, at.agent_flow, rdw(c, &tf->vtime));
    replace(c, tf->child, at.agent_flow, empty, start, first_arrival(c, at.agent_flow));
}

static void place_tenant(arm_ctx *c, arm_level *level, uint32_t tenant_flow) {
    uint32_t first = rd(c, &flow(c, tenant_flow)->child[0]);
    bool front = first && rdw(c, &flow(c, first - 1)->start) == 0;
    int64_t start = !first || front ? 0 : next_start(c, tenant_flow, rdw(c, &level->vtime));
    replace(c, level->head, tenant_flow, !first, start, tenant_arrival(c, tenant_flow));
}

/* Leaving without service costs nothing: unless the flow is empty now, or was at the front only for this ticket, it
 * keeps its place. */
void queue_remove(arm_ctx *c, uint32_t t) {
    uint32_t m = rd(c, &ticket(c, t)->meta);
    arm_level *level = &pool(c, meta_pool(m))->level[meta_level(m)];
    arm_path at = take_out(c, t);
    bool was_front = (m & META_FRONT) && !rd(c, &flow(c, at.agent_flow)->fhead);
    if (was_front || !flow_first(c, at.agent_flow)) place_agent(c, at);
    if (was_front || !rd(c, &flow(c, at.tenant_flow)->child[0])) place_tenant(c, level, at.tenant_flow);
    if ((m & META_CUSTOM) && idle(c, at.agent_flow)) wrw(c, &flow(c, at.agent_flow)->finish, 0);
}

static int64_t advance(arm_ctx *c, uint32_t f, int64_t vtime, int64_t charge) {
    int64_t start = rdw(c, &flow(c, f)->start);
    if (!start) start = next_start(c, f, vtime); /* it was moved to the front */
    int64_t finish = max64(0, start + charge + rdw(c, &flow(c, f)->adjust) - BIAS);
    wrw(c, &flow(c, f)->finish, finish);
    if (rdw(c, &flow(c, f)->adjust) != BIAS) wrw(c, &flow(c, f)->adjust, BIAS);
    return start;
}

static int64_t weighed(int64_t cost, uint32_t weight) { return weight == 1024 ? cost : cost * 1024 / weight; }

void queue_serve(arm_ctx *c, uint32_t t, bool in_turn) {
    arm_ticket *k = ticket(c, t);
    uint32_t m = rd(c, &k->meta), p = meta_pool(m), a = who_agent(rdw(c, &k->who));
    arm_level *level = &pool(c, p)->level[meta_level(m)];
    int64_t lane = (int64_t)atomic_load_explicit(&pool(c, p)->ewma, memory_order_relaxed);
    int64_t cost = queue_cost(c, t, m, rd(c, &k->tokens), lane);
    arm_path at = take_out(c, t);
    arm_flow *tf = flow(c, at.tenant_flow);
    wrw(c, &k->cost, cost);
    if (meta_level(m) == ARM_BACKGROUND && rd(c, &pool(c, p)->ahead)) wrw(c, &pool(c, p)->aserved, c->now);
    bool by_tenant = !(m & (META_FLAT | META_TURN)), by_agent = !(m & META_FLAT);
    int64_t own = by_agent ? weighed(cost, rd(c, &agent(c, a)->weight)) : 0;
    int64_t all = by_tenant ? weighed(cost, rd(c, &tenant(c, rd(c, &agent(c, a)->tenant))->weight)) : 0;
    if (m & META_CUSTOM) own = all = 0;
    int64_t as = advance(c, at.agent_flow, rdw(c, &tf->vtime), own);
    int64_t ts = advance(c, at.tenant_flow, rdw(c, &level->vtime), all);
    if (in_turn) { /* one let through out of turn does not move the others' time */
        if (as > rdw(c, &tf->vtime)) wrw(c, &tf->vtime, as);
        if (ts > rdw(c, &level->vtime)) wrw(c, &level->vtime, ts);
    }
    place_agent(c, at);
    place_tenant(c, level, at.tenant_flow);
}

static void shift(arm_ctx *c, int64_t found, int64_t by) {
    if (found < 0) return;
    arm_flow *f = flow(c, (uint32_t)found);
    if (!idle(c, (uint32_t)found)) wrw(c, &f->adjust, max64(1, rdw(c, &f->adjust) + by));
    else wrw(c, &f->finish, max64(0, rdw(c, &f->finish) + by));
}

/* A settle found that the work cost more or less than was charged. */
void queue_adjust(arm_ctx *c, uint32_t t, int64_t difference) {
    uint32_t a = who_agent(rdw(c, &ticket(c, t)->who));
    if (!difference || (rd(c, &ticket(c, t)->meta) & (META_FLAT | META_TURN | META_CUSTOM))) return;
    int64_t af = own_flow(c, t, own_id(c, t, false));
    int64_t tf = af >= 0 ? (int64_t)rd(c, &flow(c, (uint32_t)af)->parent) - 1 : flow_find(c, own_id(c, t, true));
    shift(c, tf, weighed(difference, rd(c, &tenant(c, rd(c, &agent(c, a)->tenant))->weight)));
    shift(c, af, weighed(difference, rd(c, &agent(c, a)->weight)));
}

/* Background work that has waited for age_us while its level was not served at all moves up one level, never to level 0:
 * ageing is against starvation by the levels above, not against one's turn in a long queue. Demoted work goes back to the
 * level of its class after boost_us. The lists are in order of entry, so looking at their heads is enough. */
void queue_lift(arm_ctx *c, uint32_t p) {
    const arm_config *f = &c->arena->config;
    for (int which = 0; which < 2; which++) {
        for (int moved = 0; moved < 2; moved++) {
            uint32_t t = rd(c, which ? &pool(c, p)->dhead : &pool(c, p)->ahead);
            int64_t patience = which ? f->boost_us : f->age_us;
            if (!t) break;
            int64_t when = rdw(c, &ticket(c, t - 1)->granted);
            if (!which) when = max64(when, rdw(c, &pool(c, p)->aserved));
            when += patience;
            if (when > c->now) break;
            queue_remove(c, t - 1);
            uint32_t m = rd(c, &ticket(c, t - 1)->meta);
            wr(c, &ticket(c, t - 1)->meta, with_level(m, which ? meta_class(m) : 1));
            queue_add(c, t - 1, false);
        }
    }
}
