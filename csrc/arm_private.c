/* The kernel once more, for private arenas alone: the same files as one unit (see ARM_PRIVATE in arm_internal.h). */
#define ARM_PRIVATE

#define arm_submit arm_private_submit
#define arm_settle arm_private_settle
#define arm_cancel arm_private_cancel
#define arm_reap arm_private_reap
#define arm_heartbeat arm_private_heartbeat
#define arm_try arm_private_try
#define arm_advance arm_private_advance
#define arm_poll arm_private_poll
#define arm_penalise arm_private_penalise
#define arm_reopen arm_private_reopen
#define arm_correct arm_private_correct
#define arm_events arm_private_events
#define arm_event_head arm_private_event_head
#define arm_scope_at arm_private_scope_at
#define arm_scope_count arm_private_scope_count
#define arm_limit_at arm_private_limit_at
#define arm_owner_info arm_private_owner_info
#define arm_owner_dead arm_private_owner_dead
#define arm_leave arm_private_leave

#include "arm_tx.c"
#include "arm_owner.c"
#include "arm_scope.c"
#include "arm_limit.c"
#include "arm_policy.c"
#include "arm_flow.c"
#include "arm_walk.c"
#include "arm_dispatch.c"
#include "arm_ticket.c"
