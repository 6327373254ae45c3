"""CrewAI is imported here once, in a home of its own: where it is imported it writes files there, and it puts a filter
in front of `warnings.warn`, which is taken away again for the other tests of this process. The opt-outs from telemetry
are set for all tests, in tests/conftest.py, before anything is imported."""

from __future__ import annotations

import os
import tempfile
import warnings
from unittest import mock

import pytest

_PLACES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CREWAI_STORAGE_DIR")
_OPT_OUTS = {"CREWAI_DISABLE_VERSION_CHECK": "true", "CREWAI_TESTING": "true"}

os.environ.update(_OPT_OUTS)
with tempfile.TemporaryDirectory() as _home, mock.patch.dict(os.environ, dict.fromkeys(_PLACES, _home)):
    _warn = warnings.warn
    try:
        import crewai  # noqa: F401
    except ImportError:
        collect_ignore_glob = ["test_*.py"]
    finally:
        warnings.warn = _warn  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """CrewAI keeps outputs of tasks under the name of the folder that it runs in."""
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path))
