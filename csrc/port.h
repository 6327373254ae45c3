/* The port: how one process with many threads under one lock (the GIL) uses the kernel.
 *
 * The kernel leaves its results in the participant's arm_io until the next call. Between two Python instructions another
 * thread may make that call, so the port moves the results on in the same C call: grants into a queue that any thread
 * may drain, the next due time into a sticky minimum. It also has the clock that the kernel must not have: a `now_ns`
 * of -1 means now.
 */
#ifndef ARM_PORT_H
#define ARM_PORT_H
#include "arm.h"

/* cdef: */
typedef struct arm_port arm_port;
size_t arm_port_size(uint32_t tickets);
void arm_port_init(arm_port *port, arm_ctx *ctx, uint32_t tickets);
int64_t arm_clock_ns(void);
int64_t arm_port_submit(arm_port *port, int64_t who, int64_t tokens, int64_t now_ns, int64_t idle_us, int64_t run_us,
                        int64_t parent, int64_t memory);
int64_t arm_port_submit_keyed(arm_port *port, int64_t who, int64_t tokens, int64_t now_ns, int64_t idle_us,
                              int64_t run_us, int64_t parent, int64_t memory, int64_t level, int64_t key);
int64_t arm_port_settle(arm_port *port, int64_t handle, int64_t how, int64_t now_ns);
int64_t arm_port_cancel(arm_port *port, int64_t handle, int64_t now_ns);
int64_t arm_port_reap(arm_port *port, int64_t handle, int64_t now_ns);
int64_t arm_port_advance(arm_port *port, int64_t now_ns);
int arm_port_heartbeat(arm_port *port, int64_t handle, int64_t now_ns);
int64_t arm_port_try(arm_port *port, int64_t limit, int64_t amount, int64_t now_ns);
/* The shortest way, for calls without deadlines, parent or memory: submit now; settle now and take the next grant (0:
 * none, negative: an error). */
int64_t arm_port_enter(arm_port *port, int64_t who, int64_t tokens);
int64_t arm_port_leave(arm_port *port, int64_t handle, int64_t how);
/* One limit and the amount to take of it each time, bound, so that asking it takes one argument: 1 taken, 0 not now. */
typedef struct arm_tap {
    arm_port *port;
    int64_t limit, amount;
} arm_tap;
int64_t arm_tap_try(arm_tap *tap);
int64_t arm_port_take(arm_port *port); /* next granted handle, 0: none */
int64_t arm_port_due(arm_port *port);  /* earliest due time since the last such call, -1: none */
/* Who waits in a pool and for what, as bits: ARM_WAITED somebody does, ARM_IDLE no lane is in use, ARM_TAKEN none is to be
 * had (zombies beyond the tolerated ones keep theirs). */
enum { ARM_WAITED = 1, ARM_IDLE = 2, ARM_TAKEN = 4 };
int64_t arm_port_strain(arm_port *port, int64_t pool);
/* end of cdef */
#endif
