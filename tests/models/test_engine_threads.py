"""Which threads compute: torch's workers belong to the one that computes, and stay as long as it does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from agentrm.models import LocalEngine, ToolSpec, WaitsForItself
from agentrm.models.sequence import Sampler

LOADED = """
import os, threading
import torch, transformers
from agentrm.models import LocalEngine
from tests.scheduling.driver import until

def workers():
    return len(os.listdir("/proc/self/task")) - len(threading.enumerate())

torch.set_num_threads(2)
before = workers()
with LocalEngine.load("tiny-random", device="cpu") as engine:
    print(list(engine.generate("Hello", max_new_tokens=3))[-1].usage.output_tokens)
until(lambda: workers() == before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads that /proc tells of")
def test_a_thread_that_has_loaded_and_used_an_engine_keeps_no_workers_of_torch() -> None:
    pytest.importorskip("transformers")
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=False, timeout=300)
    assert (done.stdout.strip(), done.returncode) == (b"3", 0), done.stderr.decode()


def test_what_a_caller_wants_to_know_of_logits_the_engine_s_thread_computes(
    tiny: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, ranked = set[threading.Thread](), Sampler.ranked

    def noted(self: Sampler, logits: object) -> Iterator[int]:
        seen.add(threading.current_thread())
        yield from ranked(self, logits)  # type: ignore[arg-type]

    monkeypatch.setattr(Sampler, "ranked", noted)
    tool = ToolSpec("act", "", {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}})
    list(tiny.respond([{"role": "user", "content": "Do it"}], [tool], tool_choice="any", temperature=1.0, seed=1))
    assert {thread.name for thread in seen} == {"agentrm-engine"}


def test_a_callback_that_waits_for_its_own_engine_is_told_so_and_harms_nobody(tiny: LocalEngine) -> None:
    def nested() -> bool:
        return bool(list(tiny.generate("inside", max_new_tokens=1)))

    def chooses() -> bool:
        return tiny.choose("inside", ["a", "b"]) == "a"

    for cancelled in (nested, chooses):
        with pytest.raises(WaitsForItself, match="another thread"):
            list(tiny.generate("Hello", max_new_tokens=3, cancelled=cancelled))
    assert len(list(tiny.generate("Hello", max_new_tokens=3))) == 3


def test_a_look_at_logits_that_fails_is_the_caller_s_alone(tiny: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Sampler, logits: object) -> Iterator[int]:
        raise ArithmeticError("no order")

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "ranked", broken)
        with pytest.raises(ArithmeticError, match="no order"):
            tiny.choose("Yes or no?", ["yes", "no"])
    assert tiny.choose("Yes or no?", ["yes", "no"]) in ("yes", "no")
