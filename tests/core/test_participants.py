"""Several participants in one arena: mailboxes, killed owners, forks."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrm.core.kernel import Kernel, KernelConfig, Pool
from agentrm.errors import ForkedError, KernelError
from tests.core.kernels import DONE, REFUND, SMALL, kernel, running, waiting, who


def pair(*pools: Pool, **more: Any) -> tuple[Kernel, Kernel]:
    config = KernelConfig(pools=pools or (Pool(1),), shared=True, **(SMALL | more))
    memory = mmap.mmap(-1, 1 << 22)
    one = Kernel(config, memory)
    one.agent("agent", one.tenant("tenant"))
    return one, Kernel(None, memory, attach=True)


def test_a_grant_goes_to_the_mailbox_of_its_owner() -> None:
    one, two = pair()
    held, wanted = running(one), waiting(two)
    assert one.settle(held, DONE, 1) == 0 and one.granted() == []
    assert [one.io.wake[i] for i in range(one.io.n_wake)] == [two.owner]
    assert two.poll() == 1 and two.granted() == [wanted]
    assert two.poll() == 0, "it is delivered once"


def test_a_grant_that_ended_before_it_was_fetched_is_not_delivered() -> None:
    one, two = pair()
    held, wanted = running(one), waiting(two)
    one.settle(held, DONE, 1)
    assert two.settle(wanted, REFUND, 2) == 0
    assert two.poll() == 0


def test_a_private_arena_has_one_participant() -> None:
    memory = mmap.mmap(-1, 1 << 22)
    Kernel(KernelConfig(pools=(Pool(1),), **SMALL), memory)
    with pytest.raises(KernelError, match="join"):
        Kernel(None, memory, attach=True)


def test_foreign_memory_is_refused() -> None:
    with pytest.raises(KernelError, match="no arena"):
        Kernel(None, mmap.mmap(-1, 1 << 22), attach=True)


CHILD = """
import mmap, sys
from agentrm.core.kernel import Kernel
f = open(sys.argv[1], "r+b")
k = Kernel(None, mmap.mmap(f.fileno(), 0), attach=True)
for _ in range(3):
    assert k.submit(7 << 40, 10, 0) > 0
print(k.owner, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_what_a_killed_process_held_and_waited_for_goes_to_those_that_live(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.write_bytes(b"\0" * (1 << 22))
    with path.open("r+b") as f:
        memory = mmap.mmap(f.fileno(), 0)
    config = KernelConfig(pools=(Pool(2),), shared=True, **SMALL)
    k = Kernel(config, memory)
    k.agent("agent", k.tenant("tenant"))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout and child.stdin
    slot = int(child.stdout.readline())
    assert (slot, child.pid) in [(s, pid) for s, pid, _ in k.owners()]
    mine = waiting(k, 1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert k.owner_dead(slot, child.pid + 1, 2) == 0, "another process's place"
    assert k.owner_dead(slot, child.pid, 2) >= 3
    assert k.granted() == [mine], "the dead one's waiting ticket got no lane"
    assert [t.handle for t in k.tickets()] == [mine]
    assert slot not in [s for s, _, _ in k.owners()]
    k.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_fork_the_child_is_refused_and_the_parent_goes_on() -> None:
    k = kernel()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            k.submit(who(), 0, 1)
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    running(k)
