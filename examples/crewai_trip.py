"""A crew plans and books a trip; half-way the plan changes, and the process ends. The next one goes on where it stood.

Run it twice in the same folder (OPENAI_API_KEY, or any server with OPENAI_BASE_URL): the first run books a flight and a
room and ends before it could write down the room, the second finds the museum closed, changes what is still to be done,
and books a walk. Nothing is booked twice: `trip/booked.txt` has each line once, whatever happened."""

from __future__ import annotations

import sys
from pathlib import Path

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

import agentrm
from agentrm.context.sessions import SessionStore
from agentrm_crewai import keep_in

FOLDER = Path("trip")


@tool
def book(what: str) -> str:
    """Book a flight, a room or a ticket. It costs real money."""
    with (FOLDER / "booked.txt").open("a") as booked:
        booked.write(f"{what}\n")
    return f"booked: {what}"


def build_crew() -> Crew:
    clerk = Agent(
        role="travel clerk",
        goal="Book what the traveller needs, each thing once",
        backstory="You use the tool for every booking.",
        llm=LLM(model="openai/gpt-5-mini"),
        tools=[book],
    )
    steps = ("Book a flight to Oslo.", "Book a room in Oslo.", "Book a ticket for the museum.")
    return Crew(
        agents=[clerk],
        tasks=[Task(description=step, expected_output="One sentence.", agent=clerk) for step in steps],
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    rm = agentrm.ResourceManager(pools={"default": {"lanes": 2}, "tools": {"lanes": 1}})
    with SessionStore(FOLDER / "sessions").open("oslo") as session:
        crew = keep_in(session, rm.attach(build_crew(), priority="interactive"))
        done = [task for task in crew.tasks if task.output is not None]
        if not done:
            crew.tasks[1].callback = lambda _: sys.exit("the first day is over")  # what a crash would do, more politely
        else:
            crew.tasks[2].description = "The museum is closed. Book a guided walk instead."
        print(crew.kickoff().raw)


if __name__ == "__main__":
    main()
