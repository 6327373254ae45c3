"""The store that most tests of this room use."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrm.context.sessions import SessionStore


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path)
