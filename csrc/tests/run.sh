#!/usr/bin/env bash
# Everything that shows that the kernel holds under threads, faults and kills, and the model checks; under three minutes
# on two cores. Nothing is skipped: a missing tool is an error.
#
#   SEED=7 KILLS=50000 OCCURRENCES=40 csrc/tests/run.sh      more of it, or other seeds
set -euo pipefail
cd "$(dirname "$0")"

SEED=${SEED:-1} KILLS=${KILLS:-2000} OCCURRENCES=${OCCURRENCES:-40}
BUILD=build

need() { # tool, apt package
    command -v "$1" >/dev/null || { echo "run.sh: $1 is missing: apt install $2" >&2; exit 2; }
}
need gcc gcc
need clang clang
need spin spin
echo 'int main(void){return 0;}' | clang -x c -fsanitize=thread -o /dev/null - 2>/dev/null ||
    { echo "run.sh: clang has no sanitizers: apt install clang libclang-rt-dev" >&2; exit 2; }

rm -rf "$BUILD" && mkdir -p "$BUILD"
FLAGS=(-std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE -g -pthread -I.)

build() { # name, driver, compiler, flags... ; the kernel's sources are in $KERNEL
    local name=$1 driver=$2 cc=$3
    shift 3
    "$cc" "${FLAGS[@]}" -I"${KERNEL:-..}" "$@" "$driver.c" "${KERNEL:-..}"/arm_*.c -o "$BUILD/$name"
}
# A kernel whose words carry no version that moves on: a late helper undoes newer writes.
mkdir "$BUILD/unversioned" && cp ../*.h ../arm_*.c "$BUILD/unversioned"
sed -i 's/((old >> 48) + 1) << 48/(old >> 48) << 48/; s/((old >> 32) + 1) << 32/(old >> 32) << 32/' "$BUILD/unversioned/arm_tx.c"
! cmp -s ../arm_tx.c "$BUILD/unversioned/arm_tx.c" || { echo "run.sh: the mutation changes nothing" >&2; exit 1; }
# Block pools in which a fork does not count as a user of the chain's blocks.
mkdir "$BUILD/unpinned" && cp ../*.h ../arm_*.c "$BUILD/unpinned"
sed -i 's/if (g.tail) add_refs(c, g.tail, 1, 0);//' "$BUILD/unpinned/arm_kv_chain.c"
! cmp -s ../arm_kv_chain.c "$BUILD/unpinned/arm_kv_chain.c" || { echo "run.sh: the mutation changes nothing" >&2; exit 1; }
ASAN=(-O1 -fsanitize=address,undefined -fno-sanitize-recover=all)
TSAN=(-O1 -fsanitize=thread)
echo "== build"
(
    build stress stress gcc -O2
    build storm storm gcc -O2
    build faults faults gcc -O2 -DARM_FAULTS
    KERNEL="$BUILD/unversioned" build faults-unversioned faults gcc -O2 -DARM_FAULTS
    KERNEL="$BUILD/unpinned" build stress-unpinned stress gcc -O2
) &
one=$!
build stress-tsan stress clang "${TSAN[@]}"
build faults-tsan faults clang "${TSAN[@]}" -DARM_FAULTS
build stress-asan stress clang "${ASAN[@]}"
build faults-asan faults clang "${ASAN[@]}" -DARM_FAULTS
wait $one

# A hung driver fails too: nobody may wait for anybody.
run() { timeout 170 "$BUILD/$1" "${@:2}" || { echo "run.sh: $* failed with $?" >&2; exit 1; }; }
must_fail() { # what shows it, command...
    local why=$1 out
    shift
    if out=$("$@" 2>&1); then echo "run.sh: a mutation went unnoticed: $*" >&2; exit 1; fi
    grep -q "$why" <<<"$out" || { echo "run.sh: $* failed in another way:" >&2; echo "$out" >&2; exit 1; }
    echo "caught: $*"
}

echo "== threads"
for i in 0 1 2 3; do run stress $((2 + i * 2)) 40000 $((SEED + i)); done
run stress-asan 3 20000 "$SEED"
must_fail "kv_world.h" timeout 170 "$BUILD/stress-unpinned" 3 20000 "$SEED"
for i in 0 1; do run stress-tsan $((3 + i * 3)) 10000 $((SEED + i)); done

echo "== a participant stops or dies at each step"
run faults "$OCCURRENCES" "$SEED"
run faults-asan 10 "$SEED" killed
run faults-tsan 10 "$SEED" stopped
must_fail "world.h\|faults.c" timeout 170 "$BUILD/faults-unversioned" "$OCCURRENCES" "$SEED"

echo "== kills"
run storm "$KILLS" "$SEED"

echo "== model checks"
model() { # model, spin flags...: prints what the checker found
    local name=$1 dir
    shift
    dir=$(mktemp -d "$BUILD/$name.XXXX")
    (cd "$dir" && spin "$@" -a "../../$name.pml" >/dev/null && gcc -w -O2 -DSAFETY -DCOLLAPSE -o pan pan.c)
    (cd "$dir" && timeout 170 ./pan -m200000 >out 2>&1) || true
    grep -m1 "errors:" "$dir/out" || { cat "$dir/out" >&2; return 1; }
    ! grep "^pan:1" "$dir/out"
}
for name in tx ticket; do
    echo -n "$name.pml: "
    model $name
    for mutation in $(grep -o '^ \*   NO_[A-Z]*' $name.pml | grep -o 'NO_.*'); do must_fail "errors: 1" model $name -D"$mutation"; done
done
echo "run.sh: all hold"
