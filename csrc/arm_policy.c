/* The built-in policies: the level at which a call enters, what its use does to the next one, and what it costs. */
#include "arm_internal.h"

/* Boosts since the arena's epoch. */
static int64_t boosts(arm_ctx *c) {
    int64_t boost = c->arena->config.boost_us;
    if (!boost) return 0;
    if (c->now < c->boost_from || c->now - c->boost_from >= boost) {
        c->boost_count = c->now / boost;
        c->boost_from = c->boost_count * boost;
    }
    return c->boost_count;
}

/* What an agent's work of a class used lately: share of its quantum, demotion, and when it last ended (milliseconds). A
 * boost since then clears it. */
typedef struct {
    uint32_t share, demotion, last_ms;
} arm_usage;

#define WHOLE (1u << 13) /* of a quantum */

static arm_usage usage_now(arm_ctx *c, uint32_t a, uint32_t klass) {
    int64_t w = rdw(c, &agent(c, a)->used[klass]);
    arm_usage u = {(uint32_t)(w >> 34 & 0x3fff), (uint32_t)(w >> 32 & 3), (uint32_t)w};
    int64_t passed = (uint32_t)((uint32_t)(c->now / 1000) - u.last_ms), last = c->now / 1000 - passed;
    if (boosts(c) && last * 1000 < c->boost_from) u.share = u.demotion = 0;
    return u;
}

uint32_t queue_level(arm_ctx *c, uint32_t a, uint32_t klass, uint32_t policy, int32_t custom) {
    switch (policy) {
    case ARM_CUSTOM: return (uint32_t)custom;
    case ARM_PRIORITY: return klass;
    case ARM_MLFQ: {
        uint32_t level = klass + usage_now(c, a, klass).demotion;
        return level > ARM_BACKGROUND ? ARM_BACKGROUND : klass == ARM_INTERACTIVE && level > 1 ? 1 : level;
    }
    default: return 0;
    }
}

/* Feedback: calls that follow one another without a pause add up; a whole quantum demotes the agent's work of that class
 * until the next boost. A person's turns have pauses, and an agent's background work does not make a person wait. */
void queue_usage(arm_ctx *c, uint32_t a, uint32_t klass, int64_t submitted, int64_t lane_us, int64_t tokens) {
    const arm_config *f = &c->arena->config;
    arm_usage u = usage_now(c, a, klass);
    uint32_t level = klass + u.demotion > 2 ? 2 : klass + u.demotion, now_ms = (uint32_t)(c->now / 1000);
    int64_t lane = f->quanta_us[level], most = f->quanta_tokens[level], share = 0;
    if (!lane && !most) return;
    if (lane) share = min64(lane_us, lane) * WHOLE / lane;
    if (most) share = max64(share, min64(tokens, most) * WHOLE / most);
    int64_t last = c->now / 1000 - (int64_t)(uint32_t)(now_ms - u.last_ms); /* of this class, in milliseconds */
    if (submitted / 1000 - last >= f->pause_us / 1000) u.share = 0;
    share += u.share;
    if (share >= WHOLE) {
        share = 0;
        if (u.demotion < 2) u.demotion++;
    }
    wrw(c, &agent(c, a)->used[klass], share << 34 | (int64_t)u.demotion << 32 | now_ms);
}

/* Memory is held: what part of it and for how long. */
int64_t queue_memory_cost(arm_ctx *c, uint32_t t, int64_t held_us) {
    return (min64(held_us, BIAS) * limits_memory(c, t)) >> 16;
}

int64_t queue_cost(arm_ctx *c, uint32_t t, uint32_t meta, int64_t tokens, int64_t lane_us) {
    const arm_pool_config *f = &pool(c, meta_pool(meta))->config;
    if (meta & META_FLAT) return 0;
    if (meta & META_TURN) return 1000000;
    int64_t cost = max64(lane_us / f->lanes, f->request_cost_us);
    cost = max64(cost, (tokens * f->token_cost_q8) >> 8);
    return max64(1, max64(cost, queue_memory_cost(c, t, lane_us)));
}
