"""The tiers of a session: a compaction changes what is shown and no more; what is paged out is recalled and found."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentrm.context.messages import make
from agentrm.context.pairs import find_breaks
from agentrm.context.sessions import MessageNotFound, SessionStore
from agentrm.errors import ConfigError
from agentrm.storage import AesGcmSealer
from tests.sessions.compactors import KeepTwo
from tests.sessions.scene import call, result, texts, user


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


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), "100", None, True])
@pytest.mark.parametrize("query", [None, "word"])
def test_a_budget_that_is_no_size_is_refused_and_changes_nothing(
    tmp_path: Path, size: Any, query: str | None
) -> None:
    session = SessionStore(tmp_path, compactor=KeepTwo()).open("s")
    session.extend(user(f"word{n}", f"m{n}") for n in range(10))
    with pytest.raises(ConfigError, match="budget: .* is not allowed"):
        session.context(size, query)
    with pytest.raises(ConfigError, match="target: .* is not allowed"):
        session.compact(size)
    assert texts(session.tier0()) == [f"word{n}" for n in range(10)]
