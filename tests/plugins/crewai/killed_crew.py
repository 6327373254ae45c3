"""A crew of two tasks whose process is killed while the second one books; run again, it goes on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from crewai.tools import tool

import agentrm
from agentrm.context.sessions import SessionStore
from agentrm_crewai import keep_in
from tests.plugins.crewai.scenes import Provider, StubLLM, agent_of, calling, crew_of

FOLDER = Path(sys.argv[1])


@tool
def book(what: str) -> str:
    """Books something."""
    with (FOLDER / "booked").open("a") as booked:
        booked.write(f"{what}\n")
    if what == "room":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"booked {what}"


class Clerk(StubLLM):
    """Books what its task says, then says what came of it."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        what = "room" if "task 1" in str(messages) else "flight"
        self.source.call()
        return f"{what}: {results[-1]}" if results else calling("book", what=what)

    def supports_function_calling(self) -> bool:
        return True


def main() -> None:
    rm = agentrm.ResourceManager()
    crew = crew_of(agent_of(Clerk(source=Provider()), [book]), tasks=2)
    with SessionStore(FOLDER / "sessions").open("trip") as session:
        print(keep_in(session, rm.attach(crew)).kickoff().raw)


if __name__ == "__main__":
    main()
