"""A team whose process is killed while a tool of it books; run again, it goes on.

    python killed_team.py FOLDER

Dies in the booking of the room, after its side effect, and prints what the team ends with.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from agentrm.context.sessions import SessionStore
from agentrm_autogen import keep_in
from tests.plugins.autogen.scenes import Scripted, agent_of, calling, manager, team_of, tool_of, workbench_of

FOLDER = Path(sys.argv[1])


async def book(what: str) -> str:
    with (FOLDER / "booked").open("a") as booked:
        booked.write(f"{what}\n")
    if what == "room":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"booked {what}"


def say(message: object) -> str:
    return str(getattr(message, "content", message))


async def main() -> None:
    client = Scripted(
        calling("book", arguments='{"what": "flight"}'), calling("book", arguments='{"what": "room"}'), "all done"
    )
    agent = agent_of(client, workbench=workbench_of(tool_of(book, "book")), max_tool_iterations=3)
    with SessionStore(FOLDER / "sessions").open("trip") as session:
        team = await keep_in(session, manager().attach(team_of(agent, turns=2)))
        result = await team.run(task="Book a flight and a room.")
    print(*map(say, result.messages), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
