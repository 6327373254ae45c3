"""Builds the C core with cffi: `agentrm.core._agentrm_core`, compiled from csrc/*.c, declared by csrc/arm.h alone.

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
# The kernel has no clock. This one belongs to its Python face: reading it here saves a call from Python.
CLOCK_CDEF = """
int64_t arm_clock_ns(void);
int64_t arm_submit_now(arm_ctx *ctx, int64_t who, int64_t tokens);
int64_t arm_settle_now(arm_ctx *ctx, int64_t handle, int64_t how);
int64_t arm_try_now(arm_ctx *ctx, int64_t limit, int64_t amount);
int arm_heartbeat_now(arm_ctx *ctx, int64_t handle);
"""
CLOCK = """
#include <time.h>
static int64_t arm_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static int64_t arm_submit_now(arm_ctx *c, int64_t w, int64_t n) { return arm_submit(c, w, n, arm_clock_ns()); }
static int64_t arm_settle_now(arm_ctx *c, int64_t h, int64_t how) { return arm_settle(c, h, how, arm_clock_ns()); }
static int64_t arm_try_now(arm_ctx *c, int64_t l, int64_t n) { return arm_try(c, l, n, arm_clock_ns()); }
static int arm_heartbeat_now(arm_ctx *c, int64_t h) { return arm_heartbeat(c, h, arm_clock_ns()); }
"""


def cdef() -> str:
    """The declarations between the two marks of arm.h."""
    text = (HERE / "arm.h").read_text()
    body = text.split("/* cdef:", 1)[1].split("*/", 1)[1].split("/* end of cdef */", 1)[0]
    lines = [line for line in body.splitlines() if not line.startswith(("#ifdef", "#endif"))]
    return "\n".join(lines)


def builder(module: str, *, hold_gil: bool = True) -> FFI:
    """An FFI that compiles the core as `module`; paths are relative to the directory the build runs in."""
    sources = [os.path.relpath(p) for p in sorted(HERE.glob("arm_*.c"))]
    ffi = FFI()
    ffi.cdef(cdef() + CLOCK_CDEF)
    ffi.set_source(
        module,
        (HOLD_GIL if hold_gil else "") + '#include "arm.h"\n' + CLOCK,
        sources=sources,
        include_dirs=[os.path.relpath(HERE)],
        depends=[os.path.relpath(p) for p in HERE.glob("*.h")],
        extra_compile_args=["-std=c11", "-O2", "-D_POSIX_C_SOURCE=200809L"] if os.name == "posix" else [],
        py_limited_api=True,
    )
    return ffi


ffibuilder = builder("agentrm.core._agentrm_core")

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
