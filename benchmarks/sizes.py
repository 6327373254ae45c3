"""How much work a round does; `--quick` makes all of it small, to see that everything runs."""

WAITING = 1_000
CYCLES = 20_000
STRIDE = 16
SECONDS = 0.5
TRIES = 20_000
COROUTINES = 10_000
LEASES = 3_000
DEPTH = 1_000
SLOW = 200
BLOCKS = 20_000
CHAINS = 4_000
ROUNDS = 5


def quick() -> None:
    """Sizes of a trial run, of which no figure means anything."""
    small = {"WAITING": 100, "CYCLES": 500, "SECONDS": 0.05, "TRIES": 500, "COROUTINES": 300, "LEASES": 50}
    globals().update(small, DEPTH=100, SLOW=5, BLOCKS=2_000, CHAINS=50, ROUNDS=2)
