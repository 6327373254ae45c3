/* Many SIGKILLs: processes move tickets through one arena and are killed at random instants; those that live bury them,
 * several at once. Usage: storm [kills [seed]] */
#include "world.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { WORKERS = 4 };

static void pause_us(long us) { nanosleep(&(struct timespec){0, us * 1000}, NULL); }

static void bury_the_dead(worker *k) {
    for (int32_t i = 0; i < OWNERS; i++) {
        int pid = atomic_load(&k->w->book->dead[i]);
        if (!pid || i == arm_owner_slot(k->ctx)) continue;
        bury(k, i, pid);
        atomic_compare_exchange_strong(&k->w->book->dead[i], &pid, 0);
    }
}

static pid_t start(world *w, uint64_t seed) {
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) FAIL("no process");
    if (pid) return pid;
    worker k = worker_join(w, seed, 5);
    while (!atomic_load(&w->book->stop)) {
        step_of_work(&k);
        if (draw(&k, 32) == 0) bury_the_dead(&k);
        if (draw(&k, 32) == 0 && getppid() != parent) _exit(1);
    }
    drain(&k);
    must(arm_leave(k.ctx, tick(&k, 0)), "leave");
    _exit(0);
}

/* The invariants, of the state in which the workers are stopped: a look at everything is never through while they
 * write. What they leave half done is helped to its end first. */
static void check_stopped(worker *k, const pid_t *pids) {
    for (int i = 0; i < WORKERS; i++) kill(pids[i], SIGSTOP);
    check(k);
    for (int i = 0; i < WORKERS; i++) kill(pids[i], SIGCONT);
}

int main(int argc, char **argv) {
    int kills = argc > 1 ? atoi(argv[1]) : 2000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    world w = world_make();
    worker k = worker_join(&w, seed, 5);
    pid_t pids[WORKERS];
    int status, killed = 0;
    for (int i = 0; i < WORKERS; i++) pids[i] = start(&w, seed * 1000 + (uint64_t)i);
    for (int n = 0; n < kills; n++) {
        pause_us(200 + draw(&k, 3000));
        int i = (int)draw(&k, WORKERS);
        int32_t slot = slot_of(&k, pids[i]);
        kill(pids[i], SIGKILL);
        if (waitpid(pids[i], &status, 0) != pids[i]) FAIL("no such child");
        if (WIFEXITED(status)) FAIL("a worker failed before kill %d", n);
        killed++;
        slot = slot >= 0 ? slot : slot_of(&k, pids[i]); /* it may have joined since */
        if (slot >= 0) {
            atomic_store(&w.book->dead[slot], (int)pids[i]);
            bury(&k, slot, pids[i]); /* beside the workers, who see the same notice */
        }
        pids[i] = start(&w, seed * 1000 + WORKERS + (uint64_t)n);
        check_stopped(&k, pids);
    }
    atomic_store(&w.book->stop, 1);
    for (int i = 0; i < WORKERS; i++) {
        waitpid(pids[i], &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) FAIL("a worker failed at the end");
    }
    bury_the_dead(&k);
    check_empty(&k);
    printf("storm: %d killed, seed %llu: %ld tickets granted, none twice, nothing left\n", killed, (unsigned long long)seed,
           atomic_load(&w.book->grants));
    free(k.ctx);
    world_free(&w);
    return 0;
}
