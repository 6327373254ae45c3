"""What a framework's plugin is written against.

A plugin gives the manager the calls of a framework: `call`, `acall`, `stream`, `astream` hold one lease
round one call or stream (`acall_blocking`, `astream_blocking` for sync work awaited from a loop),
`CallSpec` says what the call is, `Identity` who makes it. The entry point `agentrm.adapters` names an
`Adapter`, which `rm.attach` finds; `agentrm.adapters.conformance` is the test suite that every adapter can
run against itself."""

from __future__ import annotations

from agentrm.adapters.calls import acall, acall_blocking, call
from agentrm.adapters.client_retries import without_client_retries
from agentrm.adapters.guarding import ToolUse
from agentrm.adapters.identity import (
    OPTIONS,
    PRIORITIES,
    Identity,
    first_answers,
    identity_of,
    read_identity,
    read_options,
)
from agentrm.adapters.lazy import FrameworkMissing, lazy
from agentrm.adapters.leaving import leavable
from agentrm.adapters.registry import (
    GROUP,
    Adapter,
    AdapterWarning,
    AttachError,
    adapter,
    attach,
    failures,
    names,
)
from agentrm.adapters.spec import CallSpec
from agentrm.adapters.streams import stream
from agentrm.adapters.streams_async import astream, astream_blocking
from agentrm.adapters.usage import Meter, Usage, estimate_text, estimate_tokens, read_usage
from agentrm.threads import on_thread

__all__ = [
    "GROUP",
    "OPTIONS",
    "PRIORITIES",
    "Adapter",
    "AdapterWarning",
    "AttachError",
    "CallSpec",
    "FrameworkMissing",
    "Identity",
    "Meter",
    "ToolUse",
    "Usage",
    "acall",
    "acall_blocking",
    "adapter",
    "astream",
    "astream_blocking",
    "attach",
    "call",
    "estimate_text",
    "estimate_tokens",
    "failures",
    "first_answers",
    "identity_of",
    "lazy",
    "leavable",
    "names",
    "on_thread",
    "read_identity",
    "read_options",
    "read_usage",
    "stream",
    "without_client_retries",
]
