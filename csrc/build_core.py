"""Builds the C core with cffi: `agentrm.core._agentrm_core`, compiled from csrc/*.c, declared by its headers alone.

cffi gives up the GIL around every call. The kernel's functions are bounded and never wait for anybody, so giving it up
only costs: beside one busy Python thread such a call is tens of times slower. The two macros of the generated code are
therefore replaced by empty blocks; `benchmarks/` holds the core built with cffi's default against this one.
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
HOLD_GIL = """
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS {
#define Py_END_ALLOW_THREADS }
"""


def cdef(header: str) -> str:
    """The declarations between the two marks of a header."""
    text = (HERE / header).read_text()
    body = text.split("/* cdef:", 1)[1].split("*/", 1)[1].split("/* end of cdef */", 1)[0]
    lines = [line for line in body.splitlines() if not line.startswith(("#ifdef", "#endif"))]
    return "\n".join(lines)


def builder(module: str, *, hold_gil: bool = True) -> FFI:
    """An FFI that compiles the core as `module`; paths are relative to the directory the build runs in."""
    sources = [os.path.relpath(p) for p in sorted(HERE.glob("*.c"))]
    ffi = FFI()
    for header in ("arm.h", "arm_kv.h", "port.h"):
        ffi.cdef(cdef(header))
    ffi.set_source(
        module,
        (HOLD_GIL if hold_gil else "") + '#include "port.h"\n#include "arm_kv.h"\n',
        sources=sources,
        include_dirs=[os.path.relpath(HERE)],
        depends=[os.path.relpath(p) for p in HERE.glob("*.h")],
        extra_compile_args=["-std=c11", "-O3", "-D_POSIX_C_SOURCE=200809L"] if os.name == "posix" else [],
        py_limited_api=True,
    )
    return ffi


ffibuilder = builder("agentrm.core._agentrm_core")

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
