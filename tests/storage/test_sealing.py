"""Encryption at rest: nothing readable without the key, nothing movable, no key in any text."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from agentrm.errors import ConfigError
from agentrm.storage import AesGcmSealer, Journal, SqliteStore, Vector, WrongKey, read_journal

KEY, OTHER = os.urandom(32), os.urandom(32)
SECRET = b"the launch code is 4711"


def test_what_was_sealed_can_be_unsealed_with_old_keys_too() -> None:
    old = AesGcmSealer({"2024": KEY})
    sealed = old.seal(SECRET, b"here")
    rotated = AesGcmSealer({"2024": KEY, "2025": OTHER})
    assert rotated.key_id == "2025"
    assert rotated.unseal(sealed, b"here") == SECRET
    assert rotated.blind("word") == old.blind("word")


@pytest.mark.parametrize("keys", [{"2024": OTHER}, {"2023": KEY}])
def test_a_wrong_or_missing_key_is_named_by_its_id(keys: dict[str, bytes]) -> None:
    sealed = AesGcmSealer({"2024": KEY}).seal(SECRET, b"tenant\0session")
    with pytest.raises(WrongKey, match="tenant/session is encrypted with the key '2024'"):
        AesGcmSealer(keys).unseal(sealed, b"tenant\0session")


def test_a_sealed_value_cannot_be_changed_or_moved() -> None:
    sealer = AesGcmSealer({"k": KEY})
    sealed = sealer.seal(SECRET, b"here")
    with pytest.raises(WrongKey):
        sealer.unseal(sealed, b"there")
    for at in range(len(sealed)):
        with pytest.raises(WrongKey):
            sealer.unseal(sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :], b"here")
        with pytest.raises(WrongKey):
            sealer.unseal(sealed[:at], b"here")


def test_keys_are_in_no_text() -> None:
    sealer = AesGcmSealer({"k": KEY})
    assert repr(sealer) == "<AesGcmSealer current='k' ids=['k']>"
    with pytest.raises(TypeError):
        pickle.dumps(sealer)


@pytest.mark.parametrize("keys", [{}, {"k": b"short"}, {"": KEY}])
def test_unusable_keys_are_refused_at_once(keys: dict[str, bytes]) -> None:
    with pytest.raises(ConfigError):
        AesGcmSealer(keys)


def test_files_hold_nothing_readable(tmp_path: Path) -> None:
    sealer = AesGcmSealer({"k": KEY})
    journal = Journal(tmp_path / "j", sealer=sealer, context=b"t\0s")
    journal.append(SECRET)
    journal.close()
    store = SqliteStore(tmp_path / "s.db", sealer=sealer)
    store.put("t", "k", SECRET)
    store.add("t", "c", [Vector("v", [0.25] * 16)])
    assert [m.id for m in store.nearest("t", "c", [1.0] * 16)] == ["v"]
    store.close()
    held = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert SECRET not in held
    assert b"\x00\x00\x80\x3e" * 16 not in held  # the vector


def test_sealed_files_without_their_key_are_refused(tmp_path: Path) -> None:
    sealer = AesGcmSealer({"k": KEY})
    Journal(tmp_path / "j", sealer=sealer).append(SECRET)
    SqliteStore(tmp_path / "s.db", sealer=sealer).put("t", "k", SECRET)
    for wrong in (None, AesGcmSealer({"k": OTHER})):
        with pytest.raises(WrongKey):
            read_journal(tmp_path / "j", sealer=wrong)
        with pytest.raises(WrongKey):
            SqliteStore(tmp_path / "s.db", sealer=wrong).get("t", "k")


def test_a_sealed_record_at_another_place_is_refused(tmp_path: Path) -> None:
    sealer = AesGcmSealer({"k": KEY})
    Journal(tmp_path, sealer=sealer, context=b"t\0one").append(SECRET)
    with pytest.raises(WrongKey):
        read_journal(tmp_path, sealer=sealer, context=b"t\0two")


def test_records_from_before_encryption_stay_readable(tmp_path: Path) -> None:
    Journal(tmp_path).append(b"plain")
    journal = Journal(tmp_path, sealer=AesGcmSealer({"k": KEY}))
    journal.append(b"sealed")
    assert [r.payload for r in journal] == [b"plain", b"sealed"]
