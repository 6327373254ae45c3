"""Sessions have one owner, stay with their tenant and within its quota, and end when they are closed or deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrm.context.sessions import (
    NotAuthorised,
    SessionClosed,
    SessionLocked,
    SessionLost,
    SessionNotFound,
    SessionStore,
)
from agentrm.context.sessions.layout import file_name
from agentrm.errors import ConfigError
from agentrm.storage import Quota, QuotaExceeded
from tests.sessions.scene import texts, user


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
