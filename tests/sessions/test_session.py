"""Sessions: three tiers, one owner, nothing lost, always a list that a strict provider accepts."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrm.context.messages import Message, Text, ToolCall, ToolResult, make
from agentrm.context.pairs import find_breaks
from agentrm.context.sessions import (
    MessageConflict,
    MessageNotFound,
    NotAuthorised,
    OutcomeUnknown,
    Recovery,
    SessionClosed,
    SessionLocked,
    SessionLost,
    SessionNotFound,
    SessionStore,
    run_call,
    running,
)
from agentrm.context.sessions.layout import file_name
from agentrm.errors import ConfigError
from agentrm.storage import AesGcmSealer, FaultyDisk, Quota, QuotaExceeded, StorageFull, WrongKey
from tests.sessions.compactors import KeepTwo


def user(text: str, id: str | None = None) -> Message:
    return make("user", text, id=id)


def call(*ids: str) -> Message:
    return Message(f"a-{'-'.join(ids)}", "assistant", tuple(ToolCall(one, "act", "{}") for one in ids))


def result(call_id: str, text: str = "ok", id: str | None = None) -> Message:
    return Message(id or f"t-{call_id}", "tool", (ToolResult(call_id, text),))


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path)


# -- appending and reading


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


# -- tiers


def test_a_compaction_changes_tier_0_and_nothing_else(tmp_path: Path) -> None:
    session = SessionStore(tmp_path, compactor=KeepTwo()).open("s")
    session.extend(user(f"word{n}", f"m{n}") for n in range(10))
    session.compact(2)
    assert texts(session.tier0()) == ["summary of 8 for None", "word8", "word9"]
    session.append(user("word10", "m10"))
    assert texts(session.tier0()) == ["summary of 8 for None", "word8", "word9", "word10"]
    session.close()
    session = SessionStore(tmp_path).open("s")
    assert texts(session.tier0()) == ["summary of 8 for None", "word8", "word9", "word10"]
    assert texts(session.messages()) == [f"word{n}" for n in range(11)]
    assert session.recall("m3").text == "word3"
    assert [hit.id for hit in session.search("word3")] == ["m3"]


def test_a_context_is_compacted_above_the_high_watermark_and_only_grows_below(tmp_path: Path) -> None:
    session = SessionStore(tmp_path, compactor=KeepTwo(), high=0.8, low=0.5).open("s")
    before: list[str] = []
    compactions = 0
    for number in range(30):
        session.append(user(str(number), f"m{number}"))
        shown = texts(session.context(10))
        assert len(shown) <= 8
        if shown[: len(before)] != before:
            compactions += 1
        before = shown
    assert compactions == 4


def test_a_context_for_a_request_is_made_from_everything_and_stays_out_of_tier_0(tmp_path: Path) -> None:
    session = SessionStore(tmp_path, compactor=KeepTwo()).open("s")
    session.extend(user(str(n), f"m{n}") for n in range(9))
    session.compact(2)
    tier0 = session.tier0()
    assert texts(session.context(10, "why?")) == ["summary of 7 for why?", "7", "8"]
    assert session.tier0() == tier0


def test_a_history_that_fits_is_shown_as_it_is_whatever_the_request(tmp_path: Path) -> None:
    session = SessionStore(tmp_path, compactor=KeepTwo()).open("s")
    session.extend(user(str(n), f"m{n}") for n in range(4))
    assert texts(session.context(100, "why?")) == texts(session.context(100)) == ["0", "1", "2", "3"]


def test_what_arrives_during_a_compaction_is_carried_over(tmp_path: Path) -> None:
    session = SessionStore(tmp_path, compactor=KeepTwo(lambda: session.append(user("meanwhile")))).open("s")
    session.extend(user(str(n)) for n in range(4))
    session.compact(2)
    assert texts(session.tier0()) == ["summary of 2 for None", "2", "3", "meanwhile"]


def test_of_two_compactions_at_once_one_is_stored(tmp_path: Path) -> None:
    nested: list[None] = []

    def once() -> None:
        if not nested:
            nested.append(None)
            session.compact(2)

    session = SessionStore(tmp_path, compactor=KeepTwo(once)).open("s")
    session.extend(user(str(n)) for n in range(6))
    session.compact(2)
    assert texts(session.tier0()) == ["summary of 4 for None", "4", "5"]


def test_a_call_that_a_compaction_cut_off_from_its_result_is_mended(store: SessionStore) -> None:
    session = store.open("s")
    session.extend([user("go"), call("c"), result("c"), user("and?")])
    session.set_view(["t-c"])
    assert not find_breaks(session.tier0())
    session.set_view(["a-c"])
    assert not find_breaks(session.tier0())


def test_the_extractive_compactor_is_the_default_and_needs_no_model(store: SessionStore) -> None:
    session = store.open("s")
    session.append(make("user", "The order number is ORD-7731-X and the deadline is 2027-03-04.", id="key"))
    for number in range(60):
        session.append(make("assistant", f"Some words of no weight about the weather, day {number}. " * 8))
    session.append(user("go on"))
    shown = session.context(1500)
    assert not find_breaks(shown)
    assert len(shown) < 62
    assert any("ORD-7731-X" in message.text for message in shown)
    assert len(session.messages()) == 62
    assert store.layout.vectors("default", "s").exists()
    asked = session.context(1500, "What is the order number?")
    assert not find_breaks(asked) and len(asked) < 62
    assert session.tier0() == shown
    assert "ORD-7731-X" in session.recall("key").text


def test_watermarks_must_make_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 < low < high <= 1"):
        SessionStore(tmp_path, high=0.4, low=0.5)


def test_paged_out_messages_are_read_from_the_journal(tmp_path: Path) -> None:
    session = SessionStore(tmp_path, compactor=KeepTwo()).open("s")
    session.extend(user("x" * 1000 + str(n), f"m{n}") for n in range(20))
    session.compact(2)
    held = [e for e in session._state.entries if e.message is not None or e.raw is not None]
    assert len(held) == 2
    assert session.recall("m0").text.endswith("x0")


@pytest.mark.parametrize("sealed", [False, True])
def test_search_finds_words_parts_of_names_and_cjk(tmp_path: Path, sealed: bool) -> None:
    sealer = AesGcmSealer({"k": os.urandom(32)}) if sealed else None
    store = SessionStore(tmp_path, sealer=sealer)
    session = store.open("s")
    session.append(user("please open src/app/main.py and fix parse_config", "path"))
    session.append(user("会議は火曜日の午後です", "cjk"))
    session.append(user("nothing of note", "other"))
    store.open("s2").append(user("fix parse_config in another session", "elsewhere"))
    assert [hit.id for hit in session.search("parse_config")] == ["path"]
    assert [hit.id for hit in session.search("main.py")] == ["path"]
    assert [hit.id for hit in session.search("火曜日")] == ["cjk"]
    assert session.search("absent") == [] and session.search("?!") == []
    session.append(user("parse_config is fixed", "later"))
    assert {hit.id for hit in session.search("parse_config")} == {"path", "later"}
    assert [hit.id for hit in store.read("s").search("火曜日")] == ["cjk"]


def test_a_lost_or_damaged_index_is_made_anew(tmp_path: Path) -> None:
    for damage in (lambda p: p.unlink(), lambda p: p.write_bytes(b"junk" * 2000)):
        store = SessionStore(tmp_path)
        session = store.open("s")
        session.append(user("needle"))
        assert session.search("needle")
        store.close()
        damage(tmp_path / "index.db")
        with SessionStore(tmp_path) as again:
            assert again.open("s").search("needle")


def test_a_new_session_of_an_old_name_finds_no_old_words(tmp_path: Path) -> None:
    now = [0.0]
    for deed in ("deleted", "removed by hand"):
        now[0] += 1
        store = SessionStore(tmp_path, wall=lambda: now[0])
        session = store.open("s")
        session.extend([user(f"old {deed}"), user("old again")])
        assert len(session.search("old")) == 2
        session.close()
        if deed == "deleted":
            store.delete("s")
        else:
            shutil.rmtree(store.layout.session("default", "s"))
        now[0] += 1
        session = store.open("s")
        session.extend([user("new"), user("new again"), user("and again")])
        assert session.search("old") == []
        assert len(session.search("again")) == 2
        session.close()
        store.delete("s")


def test_a_deleted_session_leaves_no_words_behind(tmp_path: Path) -> None:
    with SessionStore(tmp_path) as store:
        for name in ("s", "s2"):
            with store.open(name) as session:
                session.append(user("hello"))
                assert session.search("hello")
        store.delete("s")
    index = sqlite3.connect(tmp_path / "index.db")
    assert [row[0].split("\n")[0] for row in index.execute("SELECT session FROM done")] == ["s2"]
    assert index.execute("SELECT COUNT(*) FROM words").fetchone() == (1,)


def test_an_unknown_message_is_named(store: SessionStore) -> None:
    with pytest.raises(MessageNotFound, match="no message 'm9'"):
        store.open("s").recall("m9")


# -- ownership, isolation, quotas


def test_two_owners_in_one_process_are_refused(store: SessionStore, tmp_path: Path) -> None:
    with store.open("s"):
        with pytest.raises(SessionLocked, match=f"process {os.getpid()}"):
            SessionStore(tmp_path).open("s")
    SessionStore(tmp_path).open("s").close()


def test_an_owner_that_was_taken_over_can_write_no_more(store: SessionStore, tmp_path: Path) -> None:
    old = store.open("s")
    old.append(user("mine"))
    new = SessionStore(tmp_path).open("s", takeover=True)
    with pytest.raises(SessionLost, match="taken over"):
        old.append(user("lost"))
    new.append(user("mine now"))
    old.close()
    assert texts(new.messages()) == ["mine", "mine now"]
    new.append(user("still mine"))


def test_an_owner_elsewhere_is_not_judged_dead(store: SessionStore, tmp_path: Path) -> None:
    store.open("s").close()
    store.layout.owner("default", "s").write_text(
        '{"host": "elsewhere", "boot": "b", "namespace": "n", "pid": 1, "started": "1", "nonce": "x", "since": 0}'
    )
    with pytest.raises(SessionLocked, match="on elsewhere"):
        store.open("s")
    store.open("s", takeover=True).append(user("taken"))


def test_a_lock_inherited_by_a_child_of_a_dead_owner_is_taken_over(tmp_path: Path) -> None:
    script = """
import os, sys, time
from agentrm.context.sessions import SessionStore
session = SessionStore(sys.argv[1]).open("s")
if os.fork() == 0:
    os.close(1); os.close(2)
    sys.stdin.read()
    os._exit(0)
os._exit(0)
"""
    child = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdin is not None
    child.wait()
    session = SessionStore(tmp_path).open("s")
    assert session.recovered.taken_over_from == child.pid
    child.stdin.close()


def test_tenants_do_not_reach_each_other(store: SessionStore) -> None:
    store.open("s", tenant="a").append(user("a's"))
    with pytest.raises(SessionNotFound):
        store.open("s", tenant="b", create=False)
    assert [card.session for card in store.list(tenant="b")] == []
    store.open("s", tenant="b").append(user("b's"))
    assert texts(store.read("s", tenant="a").messages()) == ["a's"]


@pytest.mark.parametrize("name", ["../../x", "a/b", ".", "..", "", "ü" * 300, "a\0b", "CON"])
def test_any_name_is_a_session_of_its_own_inside_the_folder(tmp_path: Path, name: str) -> None:
    store = SessionStore(tmp_path / "root")
    store.open(name, tenant=name).append(user("x"))
    store.open(name + "2", tenant=name).append(user("y"))
    assert texts(store.read(name, tenant=name).messages()) == ["x"]
    assert {card.session for card in store.list(tenant=name)} == {name, name + "2"}
    assert [p.name for p in tmp_path.iterdir()] == ["root"]


def test_names_that_differ_in_case_only_have_folders_that_differ_in_more() -> None:
    names = ["Trip", "trip", "TRIP", "trip~x", "trip%7ex"]
    assert len({file_name(name).lower() for name in names}) == len(names)


def test_a_name_that_is_no_text_is_refused(store: SessionStore) -> None:
    with pytest.raises(ConfigError, match="valid Unicode"):
        store.open("\ud800")


def test_a_tenants_quota_refuses_and_the_session_goes_on(tmp_path: Path) -> None:
    store = SessionStore(tmp_path, quotas={"small": Quota(bytes=1200, items=2)})
    session = store.open("s", tenant="small")
    with pytest.raises(QuotaExceeded, match="'small'"):
        for _ in range(100):
            session.append(user("x" * 100))
    kept = len(session)
    assert kept >= 3
    session.close()
    assert len(store.open("s", tenant="small")) == kept
    store.open("s2", tenant="small")
    with pytest.raises(QuotaExceeded, match="2 items"):
        store.open("s3", tenant="small")
    store.open("s", tenant="big").append(user("x" * 5000))


def test_the_authorise_hook_is_asked_before_anything_happens(tmp_path: Path) -> None:
    asked = []

    def authorise(action: str, tenant: str, session: str) -> bool:
        asked.append((action, tenant, session))
        return action == "open"

    store = SessionStore(tmp_path, authorise=authorise)
    store.open("s", tenant="t").close()
    for refused in (lambda: store.read("s", tenant="t"), lambda: store.delete("s", tenant="t")):
        with pytest.raises(NotAuthorised):
            refused()
    assert asked == [("open", "t", "s"), ("read", "t", "s"), ("delete", "t", "s")]


def test_a_deleted_session_is_gone_and_its_space_is_free(tmp_path: Path) -> None:
    store = SessionStore(tmp_path, quotas={"*": Quota(bytes=600)})
    session = store.open("s")
    session.append(user("x" * 200))
    with pytest.raises(SessionLocked):
        store.delete("s")
    session.close()
    store.delete("s")
    assert store.list() == []
    with pytest.raises(SessionNotFound):
        store.read("s")
    store.open("s").append(user("x" * 200))


def test_a_closed_session_says_so(store: SessionStore) -> None:
    session = store.open("s")
    session.close()
    session.close()
    with pytest.raises(SessionClosed, match="open or restore it"):
        session.append(user("x"))


# -- faults


def test_a_full_disk_refuses_one_append_and_the_next_goes_on(tmp_path: Path) -> None:
    disk = FaultyDisk()
    session = SessionStore(tmp_path, disk=disk).open("s")
    session.append(user("kept", "m1"))
    disk.fail("write", written=20)
    with pytest.raises(StorageFull):
        session.append(user("refused", "m2"))
    assert texts(session.messages()) == ["kept"]
    session.append(user("refused", "m2"))
    session.close()
    assert texts(SessionStore(tmp_path).open("s").messages()) == ["kept", "refused"]


_FULL = """
import resource, sys
from agentrm.context.messages import make
from agentrm.context.sessions import SessionStore
from agentrm.storage import SqliteStore, StorageFull
store = SessionStore(sys.argv[1], blobs=SqliteStore(None), fsync=sys.argv[2])
session = store.open("s")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
refused = 0
for number in range(100):
    message = make("user", "x" * 500, id=f"m{number}")
    try:
        session.append(message)
    except StorageFull:
        refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000 * (refused + 1), resource.RLIM_INFINITY))
        session.append(message)
session.close()
print(refused)
"""


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_a_real_limit_of_the_operating_system_costs_nothing(tmp_path: Path, fsync: str) -> None:
    out = subprocess.run([sys.executable, "-c", _FULL, tmp_path, fsync], capture_output=True, text=True, check=True)
    assert int(out.stdout) >= 1
    found = SessionStore(tmp_path).read("s")
    assert [m.id for m in found.messages()] == [f"m{n}" for n in range(100)]
    assert found.warnings == ()


def test_any_single_fault_anywhere_loses_nothing_acknowledged(tmp_path: Path, rng: random.Random) -> None:
    for trial in range(40):
        disk = FaultyDisk()
        root = tmp_path / str(trial)
        store = SessionStore(root, disk=disk, fsync=rng.choice(["always", "batch", "never"]), compactor=KeepTwo())
        session, acknowledged = store.open("s"), []
        op = rng.choice(["write", "fsync", "rename", "truncate", "fsync_dir"])
        disk.fail(op, after=rng.randrange(30), written=rng.randrange(40), times=rng.randrange(1, 4))
        for number in range(25):
            try:
                if number % 10 == 7:
                    session.compact(2)
                if number % 10 == 9:
                    session.hibernate()
                    session = store.restore("s")
                session.append(user(str(number), f"m{number}"))
                acknowledged.append(f"m{number}")
            except StorageFull:
                if session._closed:
                    session = store.open("s")
        disk.heal()
        session.close()
        assert [m.id for m in SessionStore(root).open("s").verbatim()] == acknowledged


def test_an_encrypted_session_is_unreadable_without_its_key(tmp_path: Path) -> None:
    key = os.urandom(32)
    secret = "the launch code is 4711"
    with SessionStore(tmp_path, sealer=AesGcmSealer({"k": key})) as store:
        session = store.open("s")
        session.append(user(secret))
        assert session.search("launch")
        session.hibernate()
    held = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert b"launch" not in held and b"launch".hex().encode() not in held
    for wrong in (None, AesGcmSealer({"k": os.urandom(32)})):
        with pytest.raises(WrongKey):
            SessionStore(tmp_path, sealer=wrong).open("s")
        with pytest.raises(WrongKey):
            SessionStore(tmp_path, sealer=wrong).restore("s")
    with SessionStore(tmp_path, sealer=AesGcmSealer({"k": key})) as store:
        assert texts(store.restore("s").messages()) == [secret]
