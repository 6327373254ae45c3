"""`python -m benchmarks.gateway [--only NAME ...] [--json FILE] [--record]`: first-token, departures, programs."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gateway import departures, first_token, page, programs

NAMES = ("first-token", "departures", "programs")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--only", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go besides the screen")
    parser.add_argument("--record", action="store_true", help="keep them in GATEWAY.json and results_gateway.md")
    parser.add_argument("--rounds", type=int, default=5, help="of first-token")
    parser.add_argument("--seconds", type=float, default=6, help="that each round of first-token sends requests")
    parser.add_argument("--requests", type=int, default=10_000, help="of departures")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=4, help="of each program")
    parser.add_argument("--sentences", type=int, default=12, help="of each program's system text, about 18 tokens each")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    result: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    with tempfile.TemporaryDirectory() as folder:
        if "first-token" in arguments.only:
            result["first-token"] = first_token.measure(arguments.rounds, arguments.seconds, Path(folder))
        if "departures" in arguments.only:
            result["departures"] = asyncio.run(departures.run(arguments.requests, arguments.seed))
        if "programs" in arguments.only:
            shape = programs.Shape(arguments.turns, arguments.sentences)
            result["programs"] = asyncio.run(programs.llama(Path(folder), shape))
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    if arguments.record:
        page.record({name: result[name] for name in arguments.only}, page.command("benchmarks.gateway"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
