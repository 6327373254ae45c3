/* See port.h. Every function here runs under the caller's lock. */
#include "port.h"

#include <string.h>
#include <time.h>

struct arm_port {
    arm_ctx *ctx;
    arm_io *io;
    int64_t due;
    uint32_t head, tail, room; /* room: a power of two above twice the tickets, so that it never fills */
    int64_t queue[];
};

static uint32_t room_for(uint32_t tickets) {
    uint32_t room = 64;
    while (room < tickets * 2 + ARM_MAX_OUT) room *= 2;
    return room;
}

size_t arm_port_size(uint32_t tickets) { return sizeof(arm_port) + room_for(tickets) * sizeof(int64_t); }

void arm_port_init(arm_port *port, arm_ctx *ctx, uint32_t tickets) {
    memset(port, 0, sizeof *port);
    port->ctx = ctx;
    port->io = arm_io_of(ctx);
    port->due = -1;
    port->room = room_for(tickets);
}

int64_t arm_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t time_of(int64_t now_ns) { return now_ns < 0 ? arm_clock_ns() : now_ns; }

static int64_t collect(arm_port *p, int64_t rc) {
    arm_io *io = p->io;
    for (int32_t i = 0; i < io->n_granted; i++) p->queue[p->tail++ & (p->room - 1)] = io->granted[i];
    io->n_granted = 0;
    if (io->next_due_ns >= 0 && (p->due < 0 || io->next_due_ns < p->due)) p->due = io->next_due_ns;
    return rc;
}

int64_t arm_port_submit(arm_port *p, int64_t who, int64_t tokens, int64_t now_ns, int64_t idle_us, int64_t run_us,
                        int64_t parent, int64_t memory) {
    p->io->req = (arm_request){.idle_us = idle_us, .run_us = run_us, .parent = parent, .memory = memory};
    return collect(p, arm_submit(p->ctx, who, tokens, time_of(now_ns)));
}

int64_t arm_port_submit_keyed(arm_port *p, int64_t who, int64_t tokens, int64_t now_ns, int64_t idle_us, int64_t run_us,
                              int64_t parent, int64_t memory, int64_t level, int64_t key) {
    p->io->req = (arm_request){.idle_us = idle_us, .run_us = run_us, .parent = parent, .memory = memory, .level = (int32_t)level, .key = key};
    return collect(p, arm_submit(p->ctx, who, tokens, time_of(now_ns)));
}

int64_t arm_port_settle(arm_port *p, int64_t handle, int64_t how, int64_t now_ns) {
    return collect(p, arm_settle(p->ctx, handle, how, time_of(now_ns)));
}

int64_t arm_port_cancel(arm_port *p, int64_t handle, int64_t now_ns) {
    return collect(p, arm_cancel(p->ctx, handle, time_of(now_ns)));
}

int64_t arm_port_reap(arm_port *p, int64_t handle, int64_t now_ns) {
    return collect(p, arm_reap(p->ctx, handle, time_of(now_ns)));
}

int64_t arm_port_advance(arm_port *p, int64_t now_ns) { return collect(p, arm_advance(p->ctx, time_of(now_ns))); }

int arm_port_heartbeat(arm_port *p, int64_t handle, int64_t now_ns) {
    return arm_heartbeat(p->ctx, handle, time_of(now_ns));
}

int64_t arm_port_try(arm_port *p, int64_t limit, int64_t amount, int64_t now_ns) {
    return collect(p, arm_try(p->ctx, limit, amount, time_of(now_ns)));
}

int64_t arm_port_enter(arm_port *p, int64_t who, int64_t tokens) {
    return collect(p, arm_submit(p->ctx, who, tokens, arm_clock_ns()));
}

int64_t arm_port_leave(arm_port *p, int64_t handle, int64_t how) {
    int64_t rc = collect(p, arm_settle(p->ctx, handle, how, arm_clock_ns()));
    return rc < 0 ? rc : arm_port_take(p);
}

int64_t arm_tap_try(arm_tap *t) {
    return collect(t->port, arm_try(t->port->ctx, t->limit, t->amount, arm_clock_ns()));
}

int64_t arm_port_take(arm_port *p) { return p->head == p->tail ? 0 : p->queue[p->head++ & (p->room - 1)]; }

int64_t arm_port_due(arm_port *p) {
    int64_t due = p->due;
    p->due = -1;
    return due;
}

int64_t arm_port_strain(arm_port *p, int64_t pool) {
    arm_pool_info info;
    int rc = arm_pool_at(p->ctx, (int32_t)pool, &info);
    if (rc < 0) return rc;
    int64_t kept = info.dead > info.zombies ? (int64_t)info.dead - info.zombies : 0;
    return (info.waiting ? ARM_WAITED : 0) | (info.used ? 0 : ARM_IDLE) | (info.used + kept >= info.lanes ? ARM_TAKEN : 0);
}
