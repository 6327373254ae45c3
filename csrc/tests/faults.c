/* A participant that stops or dies at each kind of atomic step, while others go on. Needs -DARM_FAULTS.
 *
 *   killed   a process on the same arena gets SIGKILL there; the parent works on meanwhile, buries it, and everything
 *            that its own tickets wait for comes back
 *   stopped  a thread stops there; two others finish all their work beside it; then it goes on
 *
 * Usage: faults [occurrences of each step [seed [killed | stopped]]] */
#include "world.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/wait.h>

void (*arm_fault_hook)(int step);

enum { STEPS = 8, APPLY = 2, HELP = 4, CALLS = 220 };
static const char *const NAMES[STEPS] = {"read root", "commit", "apply", "release", "help", "private write", "heartbeat", "event"};

static _Thread_local bool armed;
static _Thread_local int at_step, countdown;
static bool kills;
static sem_t reached, go_on;

static void hook(int step) {
    if (!armed || step != at_step || --countdown) return;
    if (kills) kill(getpid(), SIGKILL);
    armed = false;
    sem_post(&reached);
    sem_wait(&go_on);
}

static void arm(int step, int occurrence) { at_step = step, countdown = occurrence, armed = true; }

/* --- killed --- */

static void buried(worker *parent, pid_t pid) {
    int32_t slot = slot_of(parent, pid);
    if (slot >= 0) bury(parent, slot, pid);
    if (slot_of(parent, pid) >= 0) FAIL("a buried owner keeps its place");
    check(parent);
}

/* A child that works until it reaches the step; true if it did. */
static bool victim(worker *parent, world *w, int step, int occurrence, uint64_t seed) {
    pid_t pid = fork();
    if (pid < 0) FAIL("no process");
    if (!pid) {
        arm(step, occurrence);
        worker k = worker_join(w, seed, 6);
        for (int i = 0; i < CALLS; i++) step_of_work(&k);
        _exit(0); /* without leaving: its tickets are to be buried all the same */
    }
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) step_of_work(parent);
    if (WIFEXITED(status) && WEXITSTATUS(status)) FAIL("the child failed");
    buried(parent, pid);
    return WIFSIGNALED(status);
}

/* One that dies in the middle of publishing leaves work; the next one dies while it helps. */
static int leave_half_done(world *w, uint64_t seed, int occurrence) {
    int status, deaths = 0;
    int steps[3] = {APPLY, HELP, APPLY};
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid < 0) FAIL("no process");
        if (!pid) {
            worker k;
            if (i == 0) k = worker_join(w, seed, 6);
            arm(steps[i], i == 0 ? 40 + occurrence : 1);
            if (i) k = worker_join(w, seed + (uint64_t)i, 6);
            for (int n = 0; n < CALLS; n++) step_of_work(&k);
            _exit(0);
        }
        waitpid(pid, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status)) FAIL("the child failed");
        deaths += WIFSIGNALED(status);
    }
    return deaths;
}

static void kill_at(int step, int occurrence, uint64_t seed, int *hits) {
    world w = world_make();
    worker k = worker_join(&w, seed, 12);
    for (int i = 0; i < 20; i++) step_of_work(&k);
    if (step == HELP) {
        *hits += leave_half_done(&w, seed + 1, occurrence) == 3;
        bury_all_others(&k);
    } else {
        *hits += victim(&k, &w, step, occurrence, seed + 1);
    }
    for (int i = 0; i < 20; i++) step_of_work(&k);
    drain(&k);
    check_empty(&k);
    free(k.ctx);
    world_free(&w);
}

/* --- stopped --- */

typedef struct {
    world *w;
    int step, occurrence;
    uint64_t seed;
    _Atomic bool finished;
} errand;

static void *stops(void *arg) {
    errand *e = arg;
    arm(e->step, e->occurrence);
    worker k = worker_join(e->w, e->seed, 2);
    for (int i = 0; i < CALLS; i++) step_of_work(&k);
    if (armed) {
        armed = false;
        e->finished = true; /* the step did not come that often */
        sem_post(&reached);
    }
    drain(&k);
    must(arm_leave(k.ctx, tick(&k, 0)), "leave");
    free(k.ctx);
    return NULL;
}

static void *goes_on(void *arg) {
    errand *e = arg;
    worker k = worker_join(e->w, e->seed, 8);
    for (int i = 0; i < CALLS; i++) step_of_work(&k);
    drain(&k);
    must(arm_leave(k.ctx, tick(&k, 0)), "leave");
    free(k.ctx);
    return NULL;
}

static void stop_at(int step, int occurrence, uint64_t seed, int *hits) {
    world w = world_make();
    worker k = worker_join(&w, seed, 8);
    errand errands[4];
    pthread_t thread[4];
    int stopping = step == HELP ? 2 : 1, hit = 0; /* the first of two leaves the work that the second helps with */
    for (int i = 0; i < 4; i++) errands[i] = (errand){&w, step, occurrence, seed + (uint64_t)i + 1, false};
    if (step == HELP) errands[0].step = APPLY, errands[0].occurrence += 40, errands[1].occurrence = 1;
    for (int i = 0; i < stopping; i++) {
        if (pthread_create(&thread[i], NULL, stops, &errands[i])) FAIL("no thread");
        sem_wait(&reached);
        hit += !errands[i].finished;
    }
    for (int i = stopping; i < stopping + 2; i++)
        if (pthread_create(&thread[i], NULL, goes_on, &errands[i])) FAIL("no thread");
    for (int i = stopping; i < stopping + 2; i++) pthread_join(thread[i], NULL); /* although others do not move */
    check(&k);
    for (int i = 0; i < hit; i++) sem_post(&go_on);
    for (int i = 0; i < stopping; i++) pthread_join(thread[i], NULL);
    check_empty(&k);
    long grants = atomic_load(&w.book->grants), ends = atomic_load(&w.book->ends);
    if (grants != ends) FAIL("%ld grants, %ld ends", grants, ends);
    *hits += hit == stopping;
    free(k.ctx);
    world_free(&w);
}

int main(int argc, char **argv) {
    int occurrences = argc > 1 ? atoi(argv[1]) : 40;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    arm_fault_hook = hook;
    sem_init(&reached, 0, 0);
    sem_init(&go_on, 0, 0);
    printf("faults: seed %llu\n", (unsigned long long)seed);
    for (int mode = 0; mode < 2; mode++) {
        kills = mode == 0;
        if (argc > 3 && strcmp(argv[3], kills ? "killed" : "stopped")) continue;
        for (int step = 0; step < STEPS; step++) {
            int hits = 0;
            for (int n = 1; n <= occurrences; n++)
                (kills ? kill_at : stop_at)(step, n, seed * 1000 + (uint64_t)(step * 64 + n), &hits);
            printf("faults: %s at %-13s %d of %d times\n", kills ? "killed " : "stopped", NAMES[step], hits, occurrences);
            if (!hits) FAIL("never reached %s", NAMES[step]);
        }
    }
    return 0;
}
