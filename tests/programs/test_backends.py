"""Backends read what engines say, take nothing for zero that is not said, and wait for nobody that hangs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrm.errors import ConfigError
from agentrm.programs.backends import UNKNOWN, Backend, Reply, Settings, Signals, TransportError, kinds, load, poll
from agentrm.programs.backends.llamacpp import LlamaCpp
from agentrm.programs.backends.metrics_text import Metrics
from agentrm.programs.backends.sglang import SGLang
from agentrm.programs.backends.simulated import Simulated
from agentrm.programs.backends.vllm import VLLM, read
from tests.programs import engine_pages


class Engine:
    """Answers from a table of paths, 404 for what is not in it; notes what it was asked."""

    def __init__(self, pages: Mapping[str, str | int]) -> None:
        self.pages = pages
        self.asked: list[tuple[str, str, Any]] = []

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        self.asked.append((method, path, body))
        page = self.pages.get(path.partition("?")[0], 404)
        return Reply(page, b"") if isinstance(page, int) else Reply(200, page.encode())


async def test_vllm_tells_everything_on_one_page() -> None:
    signals = await VLLM("a", Engine({"/metrics": engine_pages.VLLM})).signals()
    assert signals == Signals(True, 3, 2, 0.25, 46592 - 128, 1280, 2682, 1, 1, block=128)


def test_engines_behind_one_address_are_added_up() -> None:
    signals = read(engine_pages.VLLM_TWO_ENGINES)
    assert (signals.running, signals.waiting, signals.engines) == (8, 4, 2)
    assert (signals.capacity, signals.block) == (16 * (1500 - 2), 16), "each keeps one block as a placeholder"
    assert signals.kv_used == pytest.approx(0.4)
    assert (signals.hit_tokens, signals.query_tokens) == (120, 400)


@pytest.mark.parametrize(
    "config",
    [
        'vllm:cache_config_info{block_size="16",engine="0"} 1.0',
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None"} 1.0',
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="0"} 1.0',
        "",
    ],
    ids=["no label", "not a number", "zero", "no line"],
)
def test_a_capacity_that_is_not_said_is_unknown_and_not_zero(config: str) -> None:
    signals = read('vllm:kv_cache_usage_perc{engine="0"} 0.5\n' + config)
    assert signals.capacity is None
    assert signals.running is None and signals.hit_tokens is None


def test_one_engine_without_its_size_makes_the_whole_unknown() -> None:
    lines = engine_pages.VLLM_TWO_ENGINES.splitlines()
    assert read("\n".join(line for line in lines if 'num_gpu_blocks="500"' not in line)).capacity is None


async def test_vllm_without_metrics_is_healthy_and_unknown() -> None:
    assert await VLLM("a", Engine({"/health": ""})).signals() == Signals(healthy=True)
    assert await VLLM("a", Engine({"/health": 503})).signals() == Signals(healthy=False)


async def test_capacity_is_read_anew_each_time() -> None:
    pages: dict[str, str | int] = {"/metrics": engine_pages.VLLM}
    backend = VLLM("a", Engine(pages))
    assert (await backend.signals()).capacity == 46464
    pages["/metrics"] = engine_pages.VLLM.replace("46592", "1024")
    assert (await backend.signals()).capacity == 1024 - 128


async def test_sglang_adds_up_its_ranks() -> None:
    signals = await SGLang("a", Engine({"/metrics": engine_pages.SGLANG})).signals()
    assert signals == Signals(True, 8, 2, 0.5, 873056, 1200, 4000, 3, 2)
    paged = engine_pages.SGLANG + 'sglang:page_size{dp_rank="0"} 64.0\nsglang:page_size{dp_rank="1"} 64.0\n'
    assert (await SGLang("a", Engine({"/metrics": paged})).signals()).block == 64


async def test_sglang_without_metrics_still_says_its_capacity() -> None:
    engine = Engine({"/health": "", "/server_info": json.dumps({"max_total_num_tokens": 5000, "page_size": 64})})
    assert await SGLang("a", engine).signals() == Signals(healthy=True, capacity=5000, block=64)


async def test_priorities_run_the_way_the_engine_counts_them() -> None:
    on = Settings(priority=True)
    vllm, sglang = VLLM("a", Engine({}), on), SGLang("b", Engine({}), on)
    assert vllm.capabilities.priority == "low-first" and sglang.capabilities.priority == "high-first"
    assert (await vllm.open("p", 0))["priority"] < (await vllm.open("p", 2))["priority"]
    assert (await sglang.open("p", 0))["priority"] > (await sglang.open("p", 2))["priority"]
    assert await VLLM("a", Engine({})).open("p", 0) == {}  # an engine that was not told to would refuse the field


@pytest.mark.parametrize("kind", [VLLM, SGLang])
async def test_administrative_endpoints_are_used_only_where_they_were_opened(kind: type[Backend]) -> None:
    everything: dict[str, str | int] = {
        path: "" for path in ("/reset_prefix_cache", "/flush_cache", "/abort_requests", "/abort_request")
    }
    closed = kind("a", engine := Engine(everything))
    assert not closed.capabilities.flush and not await closed.flush() and not await closed.abort("r1")
    assert not engine.asked
    opened = kind("a", engine, Settings(admin=True))
    assert opened.capabilities.flush and await opened.flush() and await opened.abort("r1")
    assert len(engine.asked) == 2


async def test_llamacpp_tells_its_slots_and_no_kv_use() -> None:
    engine = Engine({"/metrics": engine_pages.LLAMACPP, "/slots": engine_pages.LLAMACPP_SLOTS, "/health": "{}"})
    assert await LlamaCpp("a", engine).signals() == Signals(True, 1, 4, None, 4096, 31, 64, None, 1)


async def test_llamacpp_without_slots_and_metrics_is_healthy_and_unknown() -> None:
    backend = LlamaCpp("a", Engine({"/health": "{}", "/slots": 501, "/metrics": 501}))
    assert await backend.signals() == Signals(healthy=True, engines=1)
    assert await backend.open("p", 0) == {"cache_prompt": True}


class SlotEngine(Engine):
    """A llama-server's slots: state by slot, files by name."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        super().__init__({})
        self.folder, self.state = folder, {n: "" for n in range(count)}
        self.refuses = False

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        self.asked.append((method, path, body))
        if path == "/slots":
            return Reply(200, json.dumps([{"n_ctx": 100} for _ in self.state]).encode())
        if not path.startswith("/slots/"):
            return Reply(200, b"")
        slot, action = int(path[7:].partition("?")[0]), path.partition("=")[2]
        await asyncio.sleep(0)
        if self.refuses:
            return Reply(400, b"no")
        assert body is not None
        file = self.folder / body["filename"]
        if action == "save":
            file.write_text(self.state[slot])
        else:
            self.state[slot] = file.read_text()
        return Reply(200, b"{}")


async def llama(folder: Path, engine: SlotEngine | None = None, name: str = "a") -> tuple[LlamaCpp, SlotEngine]:
    engine = engine or SlotEngine(folder)
    backend = LlamaCpp(name, engine, Settings(swap_dir=str(folder)))
    await backend.signals()
    return backend, engine


async def turn(backend: LlamaCpp, engine: SlotEngine, program: str) -> str:
    """One call that appends to the state in its slot; what was there before."""
    fields = await backend.open(program, 0)
    found = engine.state[fields["id_slot"]]
    engine.state[fields["id_slot"]] = program
    backend.close(program, fields)
    return found


async def test_a_program_finds_its_state_again_however_many_share_the_slots(tmp_path: Path) -> None:
    backend, engine = await llama(tmp_path)
    programs = [f"p{n}" for n in range(5)]
    for program in programs:
        await turn(backend, engine, program)
    for _ in range(3):
        for program in programs:
            assert await turn(backend, engine, program) == program
    assert backend.failed == 0


async def test_a_program_stays_in_its_slot_while_nobody_needs_it(tmp_path: Path) -> None:
    backend, engine = await llama(tmp_path)
    for _ in range(3):
        await turn(backend, engine, "p1")
        await turn(backend, engine, "p2")
    assert backend.saved == backend.restored == 0


async def test_a_program_goes_on_at_the_other_server_with_the_same_folder(tmp_path: Path) -> None:
    one, first = await llama(tmp_path)
    two, second = await llama(tmp_path, name="b")
    await turn(one, first, "p")
    assert await one.pause("p")
    assert await turn(two, second, "p") == "p"


async def test_running_programs_keep_their_slots_and_the_others_wait(tmp_path: Path) -> None:
    backend, _ = await llama(tmp_path)
    held = [await backend.open(name, 0) for name in ("p1", "p2")]
    assert {fields["id_slot"] for fields in held} == {0, 1}
    waiting = [asyncio.ensure_future(backend.open(name, 0)) for name in ("p3", "p4")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    backend.close("p1", held[0])
    assert (await waiting[1])["id_slot"] == held[0]["id_slot"]  # who was cancelled has left no trace


async def test_waiters_that_are_cancelled_as_they_are_woken_pass_the_slot_on(tmp_path: Path) -> None:
    backend, _ = await llama(tmp_path, SlotEngine(tmp_path, 1))
    held = await backend.open("p1", 0)
    first, second = (asyncio.ensure_future(backend.open(name, 0)) for name in ("p2", "p3"))
    await asyncio.sleep(0)
    backend.close("p1", held)
    first.cancel()
    assert (await asyncio.wait_for(second, 5))["id_slot"] == 0


async def test_a_state_that_cannot_be_moved_is_computed_anew(tmp_path: Path) -> None:
    backend, engine = await llama(tmp_path, SlotEngine(tmp_path, 1))
    engine.refuses = True
    await turn(backend, engine, "p1")
    await turn(backend, engine, "p2")
    assert backend.failed == 1 and not list(tmp_path.iterdir())


async def test_what_a_program_leaves_behind_goes_with_it(tmp_path: Path) -> None:
    backend, engine = await llama(tmp_path, SlotEngine(tmp_path, 1))
    for program in ("../../p1", "p2"):
        await turn(backend, engine, program)
    assert len(list(tmp_path.iterdir())) == 1  # inside the folder, whatever the program is called
    await backend.forget("../../p1")
    assert not list(tmp_path.iterdir())


async def test_states_of_programs_that_never_came_back_are_removed(tmp_path: Path) -> None:
    backend, engine = await llama(tmp_path, SlotEngine(tmp_path, 1))
    await turn(backend, engine, "p1")
    await turn(backend, engine, "p2")
    (tmp_path / "notes.txt").write_text("not ours")
    assert backend.clean(3600) == 0 and backend.clean(-1) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


async def test_an_engine_that_was_started_anew_has_empty_slots(tmp_path: Path) -> None:
    backend, engine = await llama(tmp_path)
    held = await backend.open("p1", 0)
    engine.state = {0: "", 1: "", 2: ""}
    await backend.signals()
    fresh = await backend.open("p1", 0)
    backend.close("p1", held)
    backend.close("p1", fresh)
    assert {(await backend.open(name, 0))["id_slot"] for name in ("a", "b", "c")} == {0, 1, 2}


async def test_llamacpp_says_what_it_had_in_its_slot() -> None:
    used = {"usage": {"prompt_tokens": 32, "completion_tokens": 5}, "timings": {"cache_n": 31}}
    found = LlamaCpp("a", Engine({})).usage(used)
    assert found is not None and (found.prompt, found.completion, found.cached) == (32, 5, 31)


async def test_a_backend_that_hangs_delays_nobody() -> None:
    hung = asyncio.Event()

    class Hangs(Backend):
        async def signals(self) -> Signals:
            await hung.wait()
            return Signals(healthy=True)

    class Fails(Backend):
        async def signals(self) -> Signals:
            raise RuntimeError("a stranger's mistake")

    class Dead(Engine):
        async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
            raise TransportError("no answer")

    fine = Simulated("fine")
    backends = [Hangs("hung", Engine({})), Fails("fails", Engine({})), Backend("dead", Dead({})), fine]
    found = await poll(backends, 0.05)
    assert found == {"hung": UNKNOWN, "fails": UNKNOWN, "dead": UNKNOWN, "fine": Signals(healthy=True)}


def test_a_page_that_is_damaged_says_less_and_nothing_wrong() -> None:
    page = Metrics('a{x="1" 5\nb NaN\nc 7 1700000000\nd{q="say \\"}\\" \\\\"} 2\ngarbage\ne{} +Inf\n')
    assert page.total("a") is None and page.total("b") is None and page.total("e") is None
    assert page.total("c") == 7
    assert page.all("d")[0].labels == {"q": 'say "}" \\'}


def test_kinds_are_found_by_name() -> None:
    assert {"vllm", "sglang", "llamacpp", "openai"} <= set(kinds())
    assert load("vllm") is VLLM
    with pytest.raises(ConfigError, match="vllm"):
        load("vlm")
