"""Bug reports of area f, hibernate and restore: one test per report."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrm.context.messages import SYNTHETIC, Message, Text, ToolCall, ToolResult, make
from agentrm.context.pairs import find_breaks
from agentrm.context.sessions import (
    Session,
    SessionClosed,
    SessionLocked,
    SessionStore,
    run_call,
    running,
    sweep,
    wake,
)
from agentrm.storage import SchemaTooNew
from agentrm.storage.frames import scan


def user(text: str, id: str | None = None) -> Message:
    return make("user", text, id=id)


def calls(*ids: str, tool: str = "act") -> Message:
    return Message(f"a-{'-'.join(ids)}", "assistant", tuple(ToolCall(one, tool, "{}") for one in ids))


def result(call_id: str, text: str = "ok") -> Message:
    return Message(f"t-{call_id}", "tool", (ToolResult(call_id, text),))


def crash(session: Session) -> None:
    """What a killed process leaves: its files as they are, and no owner."""
    os.close(session._owner._fd)


def test_r98_a_torn_last_record_costs_that_record_only(tmp_path: Path, rng: random.Random) -> None:
    with SessionStore(tmp_path / "whole").open("s") as session:
        session.extend(user(f"message {n}", f"m{n}") for n in range(300))
    journal = next((tmp_path / "whole").rglob("*.journal"))
    data = journal.read_bytes()
    last = scan(data)[0][-1]
    for number in range(50):
        root = tmp_path / f"cut{number}"
        shutil.copytree(tmp_path / "whole", root)
        torn = next(root.rglob("*.journal"))
        torn.write_bytes(data[: rng.randrange(last.offset + 1, len(data))])
        with SessionStore(root).open("s", create=False) as session:
            assert [m.id for m in session.messages()] == [f"m{n}" for n in range(299)]
            assert len(session.recovered.warnings) == 1


def test_r100_a_call_without_a_result_is_closed_once_and_durably(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    session = store.open("s")
    session.extend([user("go"), calls("c1", "c2"), result("c1")])
    crash(session)
    for _ in range(2):
        with SessionStore(tmp_path).open("s") as again:
            messages = again.messages()
            assert not find_breaks(messages)
            stand_ins = [m for m in again.verbatim() if SYNTHETIC in m.flags]
            assert [m.results[0].call_id for m in stand_ins] == ["c2"]
            assert "outcome is unknown" in stand_ins[0].text
    assert sum(m.results[:1] == stand_ins[0].results for m in SessionStore(tmp_path).read("s").verbatim()) == 1


_BATCH = """
import os, signal, sys
from agentrm.context.messages import Message, ToolCall, make
from agentrm.context.sessions import SessionStore, run_call, running
root, out = sys.argv[1:]
def append(line):
    with open(out, "a") as file: file.write(line + "\\n")
    return "appended"
session = SessionStore(root).open("s")
session.append(make("user", "go"))
session.append(Message("a", "assistant", tuple(ToolCall(c, t, "{}") for c, t in
               (("c1", "append"), ("c2", "read"), ("c3", "append")))))
session.start_call("c2", safe=True)
run_call(session, "c1", lambda: append("c1"))
with running(session, "c3"):
    if "before" not in out: append("c3")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_r101_a_killed_batch_runs_no_side_effect_twice(tmp_path: Path, moment: str) -> None:
    out = tmp_path / f"{moment}.txt"
    killed = subprocess.run([sys.executable, "-c", _BATCH, tmp_path / "store", out])
    assert killed.returncode == -signal.SIGKILL

    def append(name: str) -> str:
        with out.open("a") as file:
            file.write(f"{name}\n")
        return "appended"

    session = SessionStore(tmp_path / "store").open("s")
    assert session.recovered.interrupted == ("c3",)
    assert session.recovered.rerunnable == ("c2",)
    assert run_call(session, "c1", lambda: append("c1")).text == "appended"
    assert run_call(session, "c2", lambda: "read", safe=True).text == "read"
    with pytest.raises(Exception, match="outcome is unknown"):
        run_call(session, "c3", lambda: append("c3"))
    lines = out.read_text().split()
    assert lines.count("c1") == 1
    assert lines.count("c3") == (moment == "after")
    assert not find_breaks(session.messages())


_RESUME = """
import sys
from agentrm.context.messages import make
from agentrm.context.sessions import SessionLocked, SessionStore
root, word = sys.argv[1:]
try:
    session = SessionStore(root).open("x")
except SessionLocked as refused:
    print("refused", refused, flush=True)
    raise SystemExit(3)
session.append(make("user", word))
print("owner", flush=True)
sys.stdin.read()
"""


def test_r103_two_resumes_at_once_never_share_a_session(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _RESUME, tmp_path, word],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for word in ("ONE", "TWO")
    ]
    said = [process.stdout.readline().split()[0] for process in started if process.stdout]
    assert sorted(said) == ["owner", "refused"]
    owner = started[said.index("owner")]
    with pytest.raises(SessionLocked, match=f"process {owner.pid}"):
        SessionStore(tmp_path).open("x")
    owner.kill()
    for process in started:
        process.communicate()
    with SessionStore(tmp_path).open("x") as session:
        assert session.recovered.taken_over_from == owner.pid
        assert [m.text for m in session.messages()] == [("ONE", "TWO")[said.index("owner")]]


def test_r104_queued_and_arriving_messages_are_replayed_once_and_in_order(tmp_path: Path) -> None:
    now = [1000.0]
    session = SessionStore(tmp_path, wall=lambda: now[0]).open("s")
    session.enqueue(user("too old", "old"), ttl_s=60)
    for name in ("m1", "m2", "m3"):
        session.enqueue(user(name, name))
    session.drain()
    session.enqueue(user("m4", "m4"))
    assert session.take() is None
    file = Path(session.hibernate())
    now[0] += 61

    moved = SessionStore(tmp_path / "elsewhere", wall=lambda: now[0]).restore(file)
    assert moved.recovered.expired == ("old",)
    seen = []
    while (message := moved.take()) is not None:
        seen.append(message.text)
    assert seen == ["m1", "m2", "m3", "m4"]
    assert [m.text for m in moved.messages()] == seen
    moved.close()
    assert SessionStore(tmp_path / "elsewhere").open("s").take() is None


def test_r106_the_schema_number_decides_not_the_package_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrm.__version__", "1.8.0")
    session = SessionStore(tmp_path / "a").open("s")
    session.append(user("hello"))
    file = Path(session.hibernate())
    assert b'"package": "1.8.0"' in file.read_bytes()
    monkeypatch.setattr("agentrm.__version__", "1.9.0")
    with SessionStore(tmp_path / "b").restore(file) as restored:
        assert [m.text for m in restored.messages()] == ["hello"]

    newer = file.read_bytes().replace(b"agentrm-session 1\n", b"agentrm-session 2\n", 1)
    file.write_bytes(newer)
    with pytest.raises(SchemaTooNew, match="schema 2.*schemas up to 1"):
        SessionStore(tmp_path / "c").restore(file)
    assert file.read_bytes() == newer
    assert not SessionStore(tmp_path / "c").exists("s")


def test_r106_a_journal_of_a_later_schema_is_refused_and_untouched(tmp_path: Path) -> None:
    from agentrm.storage.frames import frame

    SessionStore(tmp_path).open("s").close()
    journal = next(tmp_path.rglob("*.journal"))
    begin = json.loads(scan(journal.read_bytes())[0][0].payload) | {"schema": 2}
    data = frame(1, json.dumps(begin).encode()) + b"torn"
    journal.write_bytes(data)
    with pytest.raises(SchemaTooNew):
        SessionStore(tmp_path).open("s")
    assert journal.read_bytes() == data


def test_r108_whatever_its_last_run_came_to_an_idle_session_sleeps_and_wakes(tmp_path: Path) -> None:
    now = [0.0]

    def store() -> SessionStore:
        return SessionStore(tmp_path, wall=lambda: now[0])

    first = store()
    for name in ("done", "interrupted", "approval", "failed", "idle"):
        session = first.open(name)
        session.extend([user("go"), calls(f"c-{name}")])
        if name == "approval":
            session.await_approval("c-approval")
        elif name in ("done", "failed"):
            session.append(result(f"c-{name}"))
            session.set_status(name)
        if name == "interrupted":
            crash(session)
        else:
            session.close()
    now[0] = 2 * 3600.0
    fresh = store().open("fresh")
    fresh.append(user("just now"))
    fresh.close()

    swept = sweep(store(), idle_s=1800)
    assert sorted(swept.hibernated) == ["done", "failed", "idle", "interrupted"]
    assert swept.kept == {"approval": "waits for approval", "fresh": "idle for 0 of 1800 s"}
    woken = wake(store())
    assert {name: session.status for name, session in woken.sessions.items()} == {
        "done": "done",
        "failed": "failed",
        "idle": "active",
        "interrupted": "interrupted",
    }
    assert woken.failed == {}
    assert all(not find_breaks(session.messages()) for session in woken.sessions.values())


def test_r108_the_sweep_also_reaches_sessions_that_this_process_has_open(tmp_path: Path) -> None:
    now = [0.0]
    store = SessionStore(tmp_path, wall=lambda: now[0])
    idle, busy = store.open("idle"), store.open("busy")
    elsewhere = SessionStore(tmp_path, wall=lambda: now[0]).open("elsewhere")
    now[0] = 3600.0
    busy.append(user("still here"))
    swept = sweep(store, idle_s=1800)
    assert swept.hibernated == ("idle",)
    assert swept.kept == {"busy": "idle for 0 of 1800 s", "elsewhere": f"in use by process {os.getpid()}"}
    busy.append(user("and here"))
    elsewhere.append(user("and there"))
    with pytest.raises(SessionClosed):
        idle.append(user("asleep"))


def test_r108_waking_reports_each_session_that_could_not_come_back(tmp_path: Path) -> None:
    now = [0.0]
    store = SessionStore(tmp_path, wall=lambda: now[0])
    for name in ("good", "bad"):
        store.open(name).close()
    now[0] = 3600.0
    assert len(sweep(store, idle_s=60).hibernated) == 2
    store.layout.hibernated("default", "bad").write_bytes(b"agentrm-session 1\n{}\n")
    woken = wake(store)
    assert list(woken.sessions) == ["good"]
    assert "damaged" in str(woken.failed["bad"])


def _delete(workspace: Path) -> None:
    shutil.rmtree(workspace)


def _replace(workspace: Path) -> None:
    shutil.rmtree(workspace)
    workspace.mkdir()


@pytest.mark.parametrize("loss", [_delete, _replace])
def test_r110_a_lost_workspace_is_reported_and_the_model_told_once(
    tmp_path: Path, loss: Callable[[Path], None]
) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "a.txt").write_text("data")
    store = SessionStore(tmp_path / "store")
    session = store.open("s")
    session.append(user("use the workspace"))
    session.attach("workspace", str(workspace))
    session.hibernate()
    loss(workspace)
    for _ in range(2):
        restored = store.restore("s")
        assert restored.recovered.lost == ("workspace",)
        notices = [m for m in restored.context(100_000) if "notice from the runtime" in m.text]
        assert len(notices) == 1 and str(workspace) in notices[0].text
        restored.hibernate()


def test_r112_every_way_out_of_a_tool_writes_one_result(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    session = store.open("s")
    session.extend([user("go"), calls("c1", "c2", "c3")])
    run_call(session, "c1", lambda: "fine")
    with pytest.raises(ValueError), running(session, "c2"):
        raise ValueError("broken")
    with pytest.raises(KeyboardInterrupt), running(session, "c3"):
        raise KeyboardInterrupt
    session.hibernate()

    restored = store.restore("s")
    results = {r.call_id: r for m in restored.messages() for r in m.results}
    assert results["c1"].text == "fine" and not results["c1"].is_error
    assert "broken" in results["c2"].text and results["c2"].is_error
    assert "cancelled" in results["c3"].text and results["c3"].is_error
    restored.append(user("go on"))
    assert not find_breaks(restored.messages())
    assert len(restored.messages()) == 6


async def test_r112_a_cancelled_task_leaves_a_valid_transcript(tmp_path: Path) -> None:
    import asyncio

    from agentrm.context.sessions import arun_call

    session = SessionStore(tmp_path).open("s")
    session.extend([user("go"), calls("c1")])
    started = asyncio.Event()

    async def tool() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    task = asyncio.create_task(arun_call(session, "c1", tool))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    session.append(Message("after", "user", (Text("go on"),)))
    assert not find_breaks(session.messages())
