"""`agentrm serve`: the gateway in front of engines, until it is told to stop.

SIGTERM and SIGINT drain it: nothing new is taken, running calls get `gateway.drain_s` seconds; a second one ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from agentrm.config import Config, load
from agentrm.errors import ConfigError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="an OpenAI-compatible gateway in front of any number of engines",
        description="Listens on an OpenAI-compatible address and passes calls on to the engines of the configuration's "
        "section `gateway`, program by program (docs/gateway.md).",
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration (docs/configuration.md)")
    parser.add_argument(
        "--backend", metavar="[KIND=]URL", action="append", default=[],
        help="an engine besides those of the configuration, such as vllm=http://127.0.0.1:8000; may be repeated",
    )  # fmt: skip
    parser.add_argument("--host", help="where to listen (gateway.host)")
    parser.add_argument("--port", type=int, help="the port, 0 for a free one (gateway.port)")


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = configured(arguments)
    loop: Callable[[Coroutine[Any, Any, None]], object] = asyncio.run
    try:
        import uvloop  # faster, and there is none for Windows

        loop = uvloop.run
    except ImportError:
        pass
    loop(_serve(config))
    return 0


def configured(arguments: argparse.Namespace) -> Config:
    """The file's configuration with what the line adds. Raises ConfigError."""
    config = load(arguments.config)
    given = {name: value for name in ("host", "port") if (value := getattr(arguments, name)) is not None}
    backends = dict(config.gateway.backends)
    for one in arguments.backend:
        kind, mark, url = one.partition("=")
        if not mark or "/" in kind:
            kind, url = "openai", one
        name = next(name for number in itertools.count() if (name := f"{kind}-{number}") not in backends)
        try:
            read = load({"gateway": {"backends": {name: {"kind": kind, "url": url}}}})
        except ConfigError as error:
            raise ConfigError("--backend", one, f"[KIND=]URL, such as vllm=http://127.0.0.1:8000 ({error})") from error
        backends.update(read.gateway.backends)
    if not backends:
        allowed = "an engine, such as vllm=http://127.0.0.1:8000, here or under gateway.backends of --config"
        raise ConfigError.missing("--backend", allowed)
    gateway = replace(config.gateway, **given, backends=backends)
    gateway.check("gateway")
    if not 0 <= gateway.port <= 65535:
        raise ConfigError("--port", gateway.port, "0 to 65535")
    return replace(config, gateway=gateway)


async def _serve(config: Config) -> None:
    from agentrm.gateway import Gateway  # its library is an extra; what the line can do is shown without it

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, told.set)
    gateway = Gateway(config)
    await gateway.start()
    gc.collect()
    gc.freeze()  # what was made so far stays: no collection has to walk it while answers wait
    print(f"agentrm serve: {gateway.url}/v1", flush=True)
    await told.wait()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(one)
        signal.signal(one, signal.SIG_DFL)  # the second one ends the process there and then
    print("agentrm serve: draining", file=sys.stderr, flush=True)
    await gateway.stop()
