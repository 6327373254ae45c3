/* The block pools once more, for private arenas alone: the same files as one unit (see ARM_PRIVATE in
 * arm_internal.h). */
#define ARM_PRIVATE
#define ARM_KV_ALONE /* without the kernel's other functions */

#define arm_events arm_private_kv_events
#define arm_event_head arm_private_kv_event_head
#define arm_kv_open arm_private_kv_open
#define arm_kv_extend arm_private_kv_extend
#define arm_kv_take arm_private_kv_take
#define arm_kv_give arm_private_kv_give
#define arm_kv_fork arm_private_kv_fork
#define arm_kv_truncate arm_private_kv_truncate
#define arm_kv_release arm_private_kv_release
#define arm_kv_evict arm_private_kv_evict
#define arm_kv_rescore arm_private_kv_rescore
#define kv_bury arm_private_kv_bury

#include "arm_tx.c"
#include "arm_kv_order.c"
#include "arm_kv_block.c"
#include "arm_kv_charge.c"
#include "arm_kv_chain.c"
#include "arm_kv_leave.c"
