/* The word of a ticket: (generation, state), and the races for it. One lane; its owner uses the slot for GENS tickets one
 * after the other, and each ends by settle or by cancel; meanwhile others
 *
 *   hold and free the lane      whoever frees it grants it to the ticket if that waits, in the same transaction
 *   sweep                       a running ticket becomes a zombie and frees the lane
 *   settle with an old handle   what a delayed or repeated release does
 *
 * An operation reads the word, decides, and swaps it if it still is what was read (tx.pml shows that the other words of
 * the transaction change with it).
 *
 * Shown: each handle is granted at most once and ends at most once, never both granted and cancelled; the lane is never
 * held twice and never lost; a ticket that waits is granted when the lane is free.
 *
 * Mutations (spin -D...), each must fail:
 *   NO_GENERATION  an operation looks at the state alone: an old handle ends its slot's next user
 *   NO_SWAP        the word is stored without a comparison: two outcomes
 *   NO_DISPATCH    whoever frees the lane does not look who waits: a ticket waits for ever
 *
 * The states and moves are the table in arm.h; tests/core/test_transitions.py compares them.
 */
#ifndef GENS
#define GENS 2
#endif
#define MAXGEN 5

mtype = { FREE, CLAIMED, WAITING, RUNNING, ZOMBIE };

mtype state = FREE;
byte gen = 0;
byte lane = 0, zombies = 0;
byte granted[MAXGEN], ended[MAXGEN], cancelled[MAXGEN];
bool owner_done = false;

inline move(to) { state = to } /* every change of state is one of these, next to its row of the table */

#ifdef NO_GENERATION
#define MINE(g, h) true
#define UNCHANGED(g, s) (state == s)
#else
#define MINE(g, h) (g == h)
#ifdef NO_SWAP
#define UNCHANGED(g, s) true
#else
#define UNCHANGED(g, s) (gen == g && state == s)
#endif
#endif

/* Inside the transaction that freed the lane. */
inline dispatch() {
#ifndef NO_DISPATCH
    if
    :: state == WAITING && lane == 0 ->
        move(RUNNING); /* WAITING -> RUNNING */
        lane++;
        granted[gen]++
    :: else
    fi
#else
    skip
#endif
}

inline cancel(h) {
    atomic { g = gen; s = state }
    if
    :: MINE(g, h) && s == WAITING ->
        atomic {
            if
            :: UNCHANGED(g, s) ->
                move(CLAIMED); /* WAITING -> CLAIMED */
                gen = g + 1;
                cancelled[h]++;
                ended[h]++
            :: else
            fi
        }
    :: else
    fi
}

inline settle(h) {
    atomic { g = gen; s = state }
    if
    :: MINE(g, h) && s == RUNNING ->
        atomic {
            if
            :: UNCHANGED(g, s) ->
                move(CLAIMED); /* RUNNING -> CLAIMED */
                gen = g + 1;
                lane--;
                ended[h]++;
                dispatch()
            :: else
            fi
        }
    :: MINE(g, h) && s == ZOMBIE ->
        atomic {
            if
            :: UNCHANGED(g, s) ->
                move(CLAIMED); /* ZOMBIE -> CLAIMED */
                gen = g + 1;
                zombies--;
                ended[h]++
            :: else
            fi
        }
    :: else
    fi
}

proctype owner() {
    byte g, h, n = 0;
    mtype s;
    bool patient;
    atomic { move(CLAIMED); gen = 1 } /* FREE -> CLAIMED */
    do
    :: n == GENS -> break
    :: else ->
        if
        :: patient = true
        :: patient = false
        fi;
        atomic {
            h = gen;
            if
            :: lane == 0 ->
                move(RUNNING); /* CLAIMED -> RUNNING */
                lane++;
                granted[h]++
            :: else ->
                move(WAITING) /* CLAIMED -> WAITING */
            fi
        }
        do
        :: gen != h -> break /* it ended */
        :: !patient && gen == h -> cancel(h); settle(h)
        :: patient && gen == h ->
            (gen != h || state != WAITING); /* for ever, if the grant is lost */
            settle(h)
        od;
        assert(ended[h] == 1);
        n++
    od;
    atomic { move(FREE); gen++ } /* CLAIMED -> FREE */
    owner_done = true
}

proctype neighbour() { /* another ticket that uses the same lane */
    byte n = 0;
    do
    :: n < 2 ->
        (lane == 0);
        if
        :: atomic { lane == 0 -> lane++ }
            atomic { lane--; dispatch() }
        :: atomic { lane != 0 -> skip }
        fi;
        n++
    :: break
    od
}

proctype sweeper() {
    byte g, n = 0;
    mtype s;
    do
    :: n < 2 ->
        atomic { g = gen; s = state }
        if
        :: s == RUNNING ->
            atomic {
                if
                :: UNCHANGED(g, s) ->
                    move(ZOMBIE); /* RUNNING -> ZOMBIE */
                    lane--;
                    zombies++;
                    dispatch()
                :: else
                fi
            }
        :: else
        fi;
        n++
    :: break
    od
}

proctype late(byte h) { /* the first ticket's release, delayed or twice */
    byte g;
    mtype s;
    settle(h);
    settle(h)
}

proctype watch() {
    byte i = 1;
    (owner_done);
    do
    :: i < MAXGEN ->
        assert(granted[i] <= 1 && ended[i] <= 1);
        assert(!(granted[i] && cancelled[i]));
        i++
    :: else -> break
    od;
    assert(zombies == 0)
}

init {
    atomic {
        run owner();
        run neighbour();
        run sweeper();
        run late(1);
        run watch()
    }
}

#define lanes_right (lane <= 1)
active proctype lanes() { assert(lanes_right) } /* checked in every interleaving: it may run at any time */
