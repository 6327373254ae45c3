"""Encryption at rest: AES-GCM with keys that the caller brings, each named by an id that is stored beside the
data.

A sealed value is `version | length of key id | key id | 12 bytes nonce | ciphertext and tag`. Header and
context (what the value is: tenant, session, sequence number) are authenticated, so a value can't be moved to
another place unnoticed. Nonces are random: change the key before 2^32 values were sealed with it (NIST SP
800-38D, 8.3). Old keys stay in `keys` for as long as data sealed with them is to be read. Names (tenant,
session, key ids), sizes and times are not encrypted. Needs the extra `encryption`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from agentrm.errors import ConfigError
from agentrm.storage.errors import WrongKey

__all__ = ["AesGcmSealer", "Sealer", "key_id_of"]

_VERSION = 1
_NONCE = 12


@runtime_checkable
class Sealer(Protocol):
    """Turns bytes into bytes that say nothing without the key, and back."""

    @property
    def key_id(self) -> str:
        """The id of the key that `seal` uses; not secret."""

    def seal(self, plain: bytes, context: bytes) -> bytes:
        """The sealed form of `plain`, bound to `context`."""

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        """What was sealed. Raises WrongKey if the key is missing or wrong, or the data or its context
        changed.
        """

    def blind(self, term: str) -> str:
        """A name for `term`, always the same, that can't be turned back: for indexes over sealed text."""


def key_id_of(sealed: bytes) -> str | None:
    """The id of the key that a value was sealed with; None if this is no sealed value of a known version."""
    if len(sealed) < 2 or sealed[0] != _VERSION or len(sealed) < 2 + sealed[1] + _NONCE:
        return None
    return sealed[2 : 2 + sealed[1]].decode("utf-8", "replace")


class AesGcmSealer:
    """Seals with AES-GCM. `keys` maps ids to keys of 16, 24 or 32 bytes; `current` (default: the last) seals.

    The keys appear in no representation, error or log. Raises ConfigError for unusable keys and if the
    package `cryptography` is missing.
    """

    __slots__ = ("_blind_key", "_ciphers", "_current")

    def __init__(self, keys: Mapping[str, bytes], current: str | None = None) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            way = "with the extra: pip install 'agentrm[encryption]'"
            raise ConfigError("encryption", "AES-GCM", way) from error
        if not keys:
            raise ConfigError("encryption.keys", "none", "at least one id with its key")
        for key_id, key in keys.items():
            if len(key) not in (16, 24, 32):
                raise ConfigError(f"encryption.keys.{key_id}", f"{len(key)} bytes", "16, 24 or 32 bytes")
            if not 1 <= len(key_id.encode()) <= 255:
                raise ConfigError("encryption.keys", key_id, "ids of 1 to 255 bytes")
        self._current = current if current is not None else list(keys)[-1]
        if self._current not in keys:
            raise ConfigError("encryption.current", self._current, f"one of {', '.join(keys)}")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        # The index has to find terms written under older keys, so it hangs on the first key for good.
        self._blind_key = hmac.digest(next(iter(keys.values())), b"agentrm index", "sha256")

    def __repr__(self) -> str:
        return f"<AesGcmSealer current={self._current!r} ids={sorted(self._ciphers)}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("keys are not pickled: make an AesGcmSealer where it is needed")

    @property
    def key_id(self) -> str:
        return self._current

    def seal(self, plain: bytes, context: bytes) -> bytes:
        name = self._current.encode()
        header = bytes((_VERSION, len(name))) + name
        nonce = os.urandom(_NONCE)
        return header + nonce + self._ciphers[self._current].encrypt(nonce, plain, header + context)

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        where = context.decode("utf-8", "replace").replace("\0", "/")
        key_id = key_id_of(sealed)
        cipher = self._ciphers.get(key_id) if key_id is not None else None
        if cipher is None:
            raise WrongKey(where, key_id, tuple(self._ciphers))
        start = 2 + sealed[1]
        header, nonce = sealed[:start], sealed[start : start + _NONCE]
        try:
            return cipher.decrypt(nonce, sealed[start + _NONCE :], header + context)
        except InvalidTag as error:
            raise WrongKey(where, key_id, tuple(self._ciphers)) from error

    def blind(self, term: str) -> str:
        return hmac.new(self._blind_key, term.encode(), hashlib.sha256).hexdigest()[:20]
