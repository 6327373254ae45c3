/* Threads that do everything at once to one arena, each its own participant: afterwards nothing is left, nothing was
 * granted twice and everything that waited was granted. Usage: stress [threads [calls of each [seed]]] */
#include "world.h"

#include <pthread.h>

static world arena;
static long calls;
static uint64_t seed;
static pthread_barrier_t all_submitted;

static void *work(void *arg) {
    worker k = worker_join(&arena, seed + (uint64_t)(uintptr_t)arg, 8);
    for (long i = 0; i < calls; i++) step_of_work(&k);
    pthread_barrier_wait(&all_submitted);
    drain(&k);
    must(arm_leave(k.ctx, tick(&k, 0)), "leave");
    free(k.ctx);
    return NULL;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 4;
    calls = argc > 2 ? atol(argv[2]) : 50000;
    seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    pthread_t thread[OWNERS];
    if (n < 1 || n > OWNERS - 1) FAIL("1 to %d threads", OWNERS - 1);
    arena = world_make();
    worker k = worker_join(&arena, seed, LIVE);
    pthread_barrier_init(&all_submitted, NULL, (unsigned)n);
    for (int i = 0; i < n; i++)
        if (pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1))) FAIL("no thread");
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    check_empty(&k);
    long grants = atomic_load(&arena.book->grants), ends = atomic_load(&arena.book->ends);
    if (grants != ends) FAIL("%ld grants, %ld ends", grants, ends);
    long opened = atomic_load(&arena.book->kv.opened), ended = atomic_load(&arena.book->kv.ended);
    if (opened != ended) FAIL("%ld chains opened, %ld ended", opened, ended);
    free(k.ctx);
    world_free(&arena);
    printf("stress: %d threads, %ld calls each, seed %llu: %ld tickets granted, %ld chains opened, each once\n", n, calls,
           (unsigned long long)seed, grants, opened);
    return 0;
}
