"""The built module calls the kernel with the GIL held: giving it up costs tens of times more beside a busy thread."""

from __future__ import annotations

from pathlib import Path

from agentrm.core import _agentrm_core


def test_the_module_never_gives_the_gil_up() -> None:
    built = Path(_agentrm_core.__file__).read_bytes()
    assert b"PyInit__agentrm_core" in built, "not the module"
    for name in (b"PyEval_SaveThread", b"PyEval_RestoreThread", b"PyGILState_"):
        assert name not in built, f"{name.decode()} is imported: cffi's default release of the GIL is back"
