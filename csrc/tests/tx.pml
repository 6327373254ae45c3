/* The transaction of arm_tx.c for two participants, one of which may die at any step, and a helper that joins later.
 *
 * Two cells, each (value, version). A transaction of participant p reads both at a root that does not change, and moves
 * one unit from the first to the second, so that every state between transactions has x + y == TOTAL: a torn state shows. Each
 * participant makes ROUNDS transactions; `done` counts the commits, and at the end y says how many writes arrived.
 *
 * Shown: no reader that validates against the root ever sees a torn state; each committed write arrives once and none is
 * lost, although one participant dies anywhere and its descriptor is used again by the next transaction of its owner
 * while a helper still reads it.
 *
 * Mutations (spin -D...), each must fail:
 *   NO_VERSION   cells without a version: a late helper undoes a newer write (made visible by moving back and forth)
 *   NO_HELP      a participant that finds a published transaction waits for its owner: the dead one wedges it
 *   NO_RECHECK   a helper trusts what it read from a descriptor without looking at the root again
 *   NO_VALIDATE  a reader does not look at the root again after each cell
 *
 * Left out: the wrap of versions and of the root's sequence; weak memory (Spin's is sequentially consistent).
 */
#define TOTAL 2
#ifndef ROUNDS
#define ROUNDS 2
#endif

typedef cell { byte value; byte version }
typedef write { byte no; byte old_value; byte old_version; byte new_value }
typedef descriptor { write w[2] }

cell cells[2];
descriptor desc[2];
byte root_seq = 0, root_busy = 0; /* busy: participant + 1; both change together in one atomic step */
byte done = 0, applied = 0;
bool dead = false;
byte finished = 0;

#ifdef NO_VERSION
#define SAME(c, v, n) (cells[c].value == v)
#else
#define SAME(c, v, n) (cells[c].value == v && cells[c].version == n)
#endif

/* may die: only participant 0 does, once, between any two steps */
#define STEP                                                                                                           \
    if                                                                                                                 \
    :: me == 0 && !dead -> atomic { dead = true; goto gone }                                                           \
    :: true                                                                                                            \
    fi

/* Applies the writes of participant `whose` as published under the sequence `seq`, by whoever runs it. */
inline apply(whose, seq) {
    i = 0;
    do
    :: i < 2 ->
        no = desc[whose].w[i].no;
        STEP;
        old_value = desc[whose].w[i].old_value;
        old_version = desc[whose].w[i].old_version;
        STEP;
        new_value = desc[whose].w[i].new_value;
#ifndef NO_RECHECK
        if
        :: whose != me && !(root_seq == seq && root_busy == whose + 1) -> break
        :: else
        fi;
#endif
        STEP;
        atomic { /* compare and swap */
            if
            :: SAME(no, old_value, old_version) ->
                cells[no].value = new_value;
                cells[no].version = cells[no].version + 1
            :: else
            fi
        }
        i++
    :: else ->
        STEP;
        atomic {
            if
            :: root_seq == seq && root_busy == whose + 1 -> root_busy = 0
            :: else
            fi
        }
        break
    od
}

proctype participant(byte me) {
    byte i, no, old_value, old_version, new_value, round = 0, seq, busy, x, y, xv, yv;
    do
    :: round == ROUNDS -> break
    :: else ->
begin:
        STEP;
        atomic { seq = root_seq; busy = root_busy }
        if
        :: busy ->
#ifdef NO_HELP
            (root_busy == 0);
#else
            apply(busy - 1, seq);
#endif
            goto begin
        :: else
        fi;
        /* read both cells; any change of the root starts again */
        atomic { x = cells[0].value; xv = cells[0].version }
#ifndef NO_VALIDATE
        if
        :: root_seq != seq || root_busy -> goto begin
        :: else
        fi;
#endif
        STEP;
        atomic { y = cells[1].value; yv = cells[1].version }
#ifndef NO_VALIDATE
        if
        :: root_seq != seq || root_busy -> goto begin
        :: else
        fi;
#endif
        assert(x + y == TOTAL); /* never a torn state */
        /* fill in the descriptor, field by field: a helper of an older transaction may be reading it */
        desc[me].w[0].no = 0;
        desc[me].w[0].old_value = x;
        desc[me].w[0].old_version = xv;
        STEP;
        /* there and back: one round moves a unit over, the next one moves it back */
        desc[me].w[0].new_value = (x == TOTAL -> x - 1 : x + 1);
        desc[me].w[1].no = 1;
        desc[me].w[1].old_value = y;
        STEP;
        desc[me].w[1].old_version = yv;
        desc[me].w[1].new_value = (x == TOTAL -> y + 1 : y - 1);
        STEP;
        /* commit */
        atomic {
            if
            :: root_seq == seq && root_busy == 0 -> root_seq = seq + 1; root_busy = me + 1; done++; seq = seq + 1
            :: else -> goto begin
            fi
        }
        apply(me, seq);
        round++
    od;
gone:
    finished++
}

/* When everybody has ended or died, one more participant comes and finishes what it finds. */
proctype last() {
    byte me = 2, i, no, old_value, old_version, new_value, seq, busy;
    (finished == 2);
    atomic { seq = root_seq; busy = root_busy }
    if
    :: busy -> apply(busy - 1, seq)
    :: else
    fi;
gone:
    assert(root_busy == 0);
    assert(cells[0].value + cells[1].value == TOTAL);
    assert(cells[0].version == done && cells[1].version == done); /* each committed write arrived, once */
    assert(cells[0].value == (done % 2 -> TOTAL - 1 : TOTAL));
    assert(done >= ROUNDS) /* the one that lives made all of its transactions */
}

init {
    atomic {
        cells[0].value = TOTAL;
        run participant(0);
        run participant(1);
        run last()
    }
}
