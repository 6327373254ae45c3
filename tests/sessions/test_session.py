"""Sessions: what is appended comes back, once and in order; calls run once; a strict provider accepts the list."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentrm.context.messages import Message, Text, ToolCall
from agentrm.context.pairs import find_breaks
from agentrm.context.sessions import MessageConflict, OutcomeUnknown, Recovery, SessionStore, run_call, running
from agentrm.storage import FaultyDisk, Quota, QuotaExceeded, StorageFull
from tests.sessions.scene import call, result, texts, user


def test_messages_come_back_equal_in_another_process(store: SessionStore, tmp_path: Path) -> None:
    odd = Message("m", "user", (Text("tab\there\nnew\0line \ud800 \U0001f600 日本"),), extra={"k": [1, None]})
    with store.open("s") as session:
        session.append(odd)
    script = (
        "import sys; from agentrm.context.sessions import SessionStore\n"
        "print(ascii(SessionStore(sys.argv[1]).open('s').verbatim()[0].text))"
    )
    out = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ascii(odd.text)
    assert store.open("s").verbatim() == (odd,)


def test_appending_the_same_message_again_does_nothing(store: SessionStore) -> None:
    session = store.open("s")
    session.append(user("hello", "m"))
    session.append(user("hello", "m"))
    assert len(session) == 1
    with pytest.raises(MessageConflict, match="Give this one a new id"):
        session.append(user("something else", "m"))


def test_several_messages_are_added_all_or_none(store: SessionStore) -> None:
    session = store.open("s")
    with pytest.raises(MessageConflict):
        session.extend([user("1", "m1"), user("2", "m1")])
    assert len(session) == 0


def test_a_second_result_of_a_call_is_refused(store: SessionStore) -> None:
    session = store.open("s")
    session.extend([call("c"), result("c")])
    with pytest.raises(MessageConflict, match="has its result already"):
        session.append(result("c", "another", "t2"))


def test_an_id_of_an_earlier_turn_may_be_used_again(store: SessionStore) -> None:
    session = store.open("s")
    session.extend([call("c"), result("c", "first")])
    session.extend([user("again"), Message("a2", "assistant", (ToolCall("c", "act", "{}"),))])
    assert run_call(session, "c", lambda: "second").text == "second"
    assert not find_breaks(session.messages())
    assert [m.text for m in session.messages() if m.results] == ["first", "second"]


def test_an_open_call_is_shown_as_pending_until_its_result_comes(store: SessionStore) -> None:
    session = store.open("s")
    session.extend([call("c"), user("and?")])
    assert not find_breaks(session.messages())
    assert "pending" in session.messages()[1].text
    session.append(result("c", "late"))
    assert texts(session.messages()) == ["", "late", "and?"]
    assert not find_breaks(session.tier0())


def test_a_late_real_result_takes_the_place_of_its_stand_in(store: SessionStore) -> None:
    session = store.open("s")
    session.append(call("c"))
    session.close()
    session = store.open("s")
    assert session.recovered.interrupted == ("c",)
    session.append(user("and?"))
    session.append(result("c", "it worked after all"))
    for _ in range(2):
        assert texts(session.messages()) == ["", "it worked after all", "and?"]
        assert texts(session.tier0()) == ["", "it worked after all", "and?"]
        assert len(session.verbatim()) == 4
        session.close()
        session = store.open("s")


def test_an_approval_outlives_its_process_and_can_expire(tmp_path: Path) -> None:
    now = [0.0]
    store = SessionStore(tmp_path, wall=lambda: now[0])
    session = store.open("s")
    session.extend([call("c1", "c2")])
    session.await_approval("c1")
    session.await_approval("c2", expires_s=60)
    session.close()
    now[0] = 61
    session = store.open("s")
    assert session.recovered.awaiting_approval == ("c1",)
    assert session.recovered.expired == ("c2",)
    assert session.status == "awaiting_approval"
    session.approve("c1")
    assert run_call(session, "c1", lambda: "done").text == "done"
    assert not find_breaks(session.messages())


def test_a_safe_tool_may_run_again_by_its_name(tmp_path: Path) -> None:
    with SessionStore(tmp_path).open("s") as session:
        session.append(Message("a", "assistant", (ToolCall("c1", "read", "{}"), ToolCall("c2", "send", "{}"))))
        session.start_call("c1")
        session.start_call("c2")
    session = SessionStore(tmp_path, safe_tools=["read"]).open("s")
    assert (session.recovered.rerunnable, session.recovered.interrupted) == (("c1",), ("c2",))


def test_a_result_is_kept_once_if_two_threads_finish_a_call(store: SessionStore) -> None:
    session = store.open("s")
    session.append(call("c"))
    session.start_call("c")
    ends = [threading.Thread(target=session.finish_call, args=("c", str(n))) for n in range(8)]
    for thread in ends:
        thread.start()
    for thread in ends:
        thread.join()
    assert len([m for m in session.verbatim() if m.results]) == 1


def test_threads_append_without_losing_anything(store: SessionStore) -> None:
    session = store.open("s")
    threads = [
        threading.Thread(target=lambda n=n: [session.append(user(f"{n}-{i}", f"{n}-{i}")) for i in range(50)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.close()
    found = [m.id for m in store.open("s").messages()]
    assert sorted(found) == sorted(f"{n}-{i}" for n in range(4) for i in range(50))
    for n in range(4):
        assert [f for f in found if f.startswith(f"{n}-")] == [f"{n}-{i}" for i in range(50)]


def test_a_call_runs_once_at_a_time(store: SessionStore) -> None:
    session = store.open("s")
    session.append(call("c"))
    with running(session, "c") as run:
        for safe in (False, True):
            with pytest.raises(OutcomeUnknown):
                run_call(session, "c", lambda: "again", safe=safe)
        run.finish("once")
    assert run_call(session, "c", lambda: "again").text == "once"


@pytest.mark.parametrize("op", ["write", "fsync"])
def test_a_start_that_could_not_be_stored_is_no_start(tmp_path: Path, op: str) -> None:
    disk = FaultyDisk()
    session = SessionStore(tmp_path, disk=disk).open("s")
    session.append(call("c"))
    disk.fail(op)
    with pytest.raises(StorageFull):
        run_call(session, "c", lambda: "never")
    assert run_call(session, "c", lambda: "once").text == "once"


def test_a_result_that_could_not_be_stored_is_stored_later_without_a_second_run(tmp_path: Path) -> None:
    disk = FaultyDisk()
    session = SessionStore(tmp_path, disk=disk).open("s")
    session.append(call("c"))
    runs = []

    def tool() -> str:
        runs.append(1)
        disk.fail("write")
        return "precious"

    with pytest.raises(StorageFull):
        run_call(session, "c", tool)
    assert run_call(session, "c", tool).text == "precious"
    assert runs == [1]
    session.close()
    assert texts(SessionStore(tmp_path).open("s").messages()) == ["", "precious"]


def test_draining_waits_for_the_calls_that_run(store: SessionStore) -> None:
    session = store.open("s")
    session.append(call("c1", "c2"))
    session.start_call("c2")
    started, go = threading.Event(), threading.Event()

    def tool() -> str:
        started.set()
        go.wait()
        return "done"

    thread = threading.Thread(target=run_call, args=(session, "c1", tool))
    thread.start()
    started.wait()
    assert session.drain() == ("c1", "c2")
    session.finish_call("c2", "done")
    go.set()
    assert session.drain(wait_s=60) == ()
    thread.join()
    session.hibernate()
    assert store.restore("s").recovered == Recovery()


def test_a_tenant_at_its_quota_can_still_open_its_sessions(tmp_path: Path) -> None:
    with SessionStore(tmp_path).open("s") as session:
        session.append(call("c"))
    session = SessionStore(tmp_path, quotas={"*": Quota(bytes=1)}).open("s")
    assert session.recovered.interrupted == ("c",)
    with pytest.raises(QuotaExceeded):
        session.append(user("more"))


def test_a_call_that_waits_for_approval_does_not_run(store: SessionStore) -> None:
    session = store.open("s")
    session.append(call("c"))
    session.await_approval("c")
    with pytest.raises(MessageConflict, match="approve"):
        run_call(session, "c", lambda: "never")
    assert session.open_calls()[0].state == "awaiting_approval"
