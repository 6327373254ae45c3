/* The tickets of a pool in order of service: level, tenant's flow, agent's flow, place in it. Reads only, and no more than
 * ARM_SCAN tickets of a level and a quarter of that of one agent. */
#include "arm_internal.h"

static uint32_t settle_on(arm_walk *w, uint32_t t) {
    if (!w->left) {
        w->cut = true;
        return 0;
    }
    w->left--;
    w->ticket = t;
    return t;
}

uint32_t walk_first(arm_ctx *c, arm_pool *p, arm_walk *w, uint32_t level) {
    *w = (arm_walk){.level = level, .left = ARM_SCAN};
    w->tenant_flow = rd(c, &p->level[level].head[0]);
    if (!w->tenant_flow) return 0;
    w->agent_flow = rd(c, &flow(c, w->tenant_flow - 1)->child[0]);
    return settle_on(w, flow_first(c, w->agent_flow - 1));
}

uint32_t walk_next(arm_ctx *c, arm_walk *w) {
    uint32_t t = rd(c, &ticket(c, w->ticket - 1)->qnext);
    if (!t && (rd(c, &ticket(c, w->ticket - 1)->meta) & META_FRONT)) t = rd(c, &flow(c, w->agent_flow - 1)->qhead);
    if (t && ++w->depth < ARM_SCAN / 4) return settle_on(w, t);
    if (t) w->cut = true; /* more of this agent's than are looked at */
    w->depth = 0;
    w->agent_flow = rd(c, &flow(c, w->agent_flow - 1)->tower[0]);
    if (!w->agent_flow) {
        w->tenant_flow = rd(c, &flow(c, w->tenant_flow - 1)->tower[0]);
        if (!w->tenant_flow) return 0;
        w->agent_flow = rd(c, &flow(c, w->tenant_flow - 1)->child[0]);
    }
    return settle_on(w, flow_first(c, w->agent_flow - 1));
}

uint32_t queue_first(arm_ctx *c, arm_pool *p) {
    arm_walk w;
    uint32_t t = 0;
    for (uint32_t level = 0; level < 3 && !t; level++) t = walk_first(c, p, &w, level);
    return t;
}
