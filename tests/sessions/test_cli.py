"""`agentrm sessions`: every action, on real stores, with its exit status."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrm.cli import sessions as command
from agentrm.context.messages import Message, ToolCall, make
from agentrm.context.sessions import SessionLocked, SessionNotFound, SessionStore, run_call
from agentrm.errors import ConfigError
from agentrm.storage import AesGcmSealer, WrongKey

Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with SessionStore(tmp_path / "store") as store:
        session = store.open("trip")
        session.append(make("user", "book the flight to Kyōto\nplease", id="m1"))
        session.append(Message("m2", "assistant", (ToolCall("c1", "book", '{"to": "KIX"}'),)))
        run_call(session, "c1", lambda: "booked as ABC123")
        session.set_status("done")
        store.open("other").append(make("user", "nothing"))
    return tmp_path / "store"


@pytest.fixture
def cli(root: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: object, store: Path = root) -> tuple[int, str]:
        parser = argparse.ArgumentParser()
        command.add_parser(parser.add_subparsers())
        line = ["sessions", "--store", str(store), *map(str, words)]
        status = command.run(parser.parse_args(line))
        return status, capsys.readouterr().out

    return call


def test_list(cli: Cli) -> None:
    status, out = cli("list")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["other", "active"], ["trip", "done"]]
    assert json.loads(cli("--json", "list")[1].splitlines()[1])["messages"] == 3
    assert "no sessions" in cli("--tenant", "nobody", "list")[1]


def test_options_may_stand_behind_the_action_too(cli: Cli, root: Path) -> None:
    assert cli("list", "--store", root, "--json", store=root / "no")[1] == cli("--json", "list")[1]
    assert "no sessions" in cli("list", "--tenant", "nobody")[1]


def test_without_a_store_the_line_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTRM_STORE", raising=False)
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    with pytest.raises(ConfigError, match="--store is missing"):
        command.run(parser.parse_args(["sessions", "list"]))


def test_show(cli: Cli) -> None:
    status, out = cli("show", "trip")
    assert status == 0
    assert 'assistant -> book({"to": "KIX"})' in out
    assert "book the flight to Kyōto please" in out
    assert len(cli("--json", "show", "trip", "--last", "1")[1].splitlines()) == 1
    with pytest.raises(SessionNotFound):
        cli("show", "absent")


def test_search(cli: Cli) -> None:
    status, out = cli("search", "abc123")
    assert status == 0 and out.startswith("trip") and "booked" in out
    assert cli("search", "absent") == (1, "")
    assert cli("search", "abc123", "--session", "other") == (1, "")


@pytest.mark.parametrize("number", ["-5", "0", "x", "1.5", "9" * 5000])
@pytest.mark.parametrize("words", [("show", "trip", "--last"), ("search", "abc123", "-k")])
def test_a_number_that_prints_nothing_is_refused_by_name(
    cli: Cli, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], number: str
) -> None:
    with pytest.raises(SystemExit) as left:
        cli(*words, number)
    assert left.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {words[-1]}: " in last and "allowed: a whole number, 1 or more" in last and len(last) < 400


def test_hibernate_and_restore(cli: Cli, tmp_path: Path) -> None:
    file = cli("hibernate", "trip")[1].strip()
    assert "asleep" in cli("list")[1]
    assert cli("restore", "trip")[1] == "default/trip: done, 3 messages\n"
    status, out = cli("restore", file, "--as", "copy", store=tmp_path / "elsewhere")
    assert (status, out) == (0, "default/copy: done, 3 messages\n")


def test_an_owned_session_is_refused(cli: Cli, root: Path) -> None:
    with SessionStore(root) as store:
        store.open("trip")
        assert cli("show", "trip")[0] == 0
        with pytest.raises(SessionLocked):
            cli("hibernate", "trip")


def test_export(cli: Cli, tmp_path: Path) -> None:
    lines = cli("export", "trip")[1].splitlines()
    assert [Message.from_json(json.loads(line)).role for line in lines] == ["user", "assistant", "tool"]
    assert [m["role"] for m in json.loads(cli("export", "trip", "--format", "openai")[1])][-1] == "tool"
    cli("export", "trip", "--format", "text", "-o", tmp_path / "out.txt")
    assert "ABC123" in (tmp_path / "out.txt").read_text()


def test_verify_tells_sound_from_damaged(cli: Cli, root: Path) -> None:
    cli("hibernate", "trip")
    assert cli("verify") == (0, "other: sound, 2 records\ntrip: sound, 6 records\n")
    journal = SessionStore(root).layout.session("default", "trip") / "000001.journal"
    journal.write_bytes(journal.read_bytes().replace(b"flight", b"fright"))
    status, out = cli("verify", "trip")
    assert status == 1
    assert "damaged" in out and "records 2 to 2 are missing" in out and "hibernation file" in out


def test_a_torn_tail_is_a_note(cli: Cli, root: Path) -> None:
    journal = SessionStore(root).layout.session("default", "other") / "000001.journal"
    journal.write_bytes(journal.read_bytes()[:-4])
    status, out = cli("verify", "other")
    assert status == 0 and "note: 000001.journal: a record cut off at the end" in out


def test_an_encrypted_store_needs_its_key_file(cli: Cli, tmp_path: Path) -> None:
    key = os.urandom(32)
    with SessionStore(tmp_path / "sealed", sealer=AesGcmSealer({"k1": key})) as store:
        store.open("s").append(make("user", "secret"))
    (tmp_path / "key").write_text(key.hex() + "\n")
    given = ("--key-file", f"k1={tmp_path / 'key'}")
    assert "secret" in cli(*given, "show", "s", store=tmp_path / "sealed")[1]
    with pytest.raises(WrongKey):
        cli("show", "s", store=tmp_path / "sealed")
    with pytest.raises(ConfigError):
        cli("--key-file", "k1", "show", "s", store=tmp_path / "sealed")


@pytest.mark.parametrize("digits,ending,fits", [(32, "\n", 16), (48, "", 24), (64, "", 32), (64, "\n", 32), (32, "", 0)])
def test_a_key_file_is_read_in_one_way_or_refused(cli: Cli, tmp_path: Path, digits: int, ending: str, fits: int) -> None:
    """32 hexadecimal digits alone may be a key themselves."""
    key = os.urandom(digits // 2)
    with SessionStore(tmp_path / "sealed", sealer=AesGcmSealer({"k1": key})) as store:
        store.open("s").append(make("user", "secret"))
    (tmp_path / "key").write_text(key.hex() + ending)
    given = ("--key-file", f"k1={tmp_path / 'key'}")
    if fits:
        assert "secret" in cli(*given, "show", "s", store=tmp_path / "sealed")[1]
    else:
        with pytest.raises(ConfigError, match="line break"):
            cli(*given, "show", "s", store=tmp_path / "sealed")


def test_a_store_must_be_named_and_exist(cli: Cli, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="existing folder"):
        cli("list", store=tmp_path / "absent")
