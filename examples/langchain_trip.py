"""An agent plans a trip. Half-way the person changes the plan: the run is drained after its step and put to sleep in
one file; the next start goes on with the new plan. What was booked stays booked, and is booked once.

OPENAI_API_KEY=... python examples/langchain_trip.py "A flight to Oslo, then a hotel and a museum there."
OPENAI_API_KEY=... python examples/langchain_trip.py "Keep the flight, but sleep in Bergen. No museum."
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

import agentrm
from agentrm.context.sessions import SessionStore
from agentrm_langchain import AgentRMMiddleware, CompactionMiddleware
from agentrm_langchain.checkpoint import SessionSaver
from agentrm_langchain.hibernation import hibernate_thread, restore_thread
from agentrm_langchain.once import OnceMiddleware

TRIP = "trip"
BOOKINGS = Path("bookings.txt")
"""What happened in the world: one line for each booking."""

rm = agentrm.ResourceManager(pools={"default": {"lanes": 2}, "tools": {"lanes": 1}})


@tool
def book_flight(city: str) -> str:
    """Book a flight to a city."""
    return book(f"flight to {city}")


@tool
def book_hotel(city: str) -> str:
    """Book a hotel in a city."""
    return book(f"hotel in {city}")


def book(what: str) -> str:
    with BOOKINGS.open("a") as file:
        print(what, file=file)
    return f"booked: {what}"


def make_agent(sessions: SessionStore, saver: SessionSaver) -> Any:
    return create_agent(
        ChatOpenAI(model="gpt-5-mini"),
        [book_flight, book_hotel],
        system_prompt="Book what the newest plan says and nothing that is booked already, one thing at a time.",
        middleware=[CompactionMiddleware(50_000), OnceMiddleware(sessions), AgentRMMiddleware(rm, session=TRIP)],
        checkpointer=saver,
    )


def main(plan: str) -> None:
    with SessionStore("trips/") as sessions:
        saver, control = SessionSaver(sessions), RunControl()
        goes_on = sessions.exists(TRIP)
        if goes_on:
            restore_thread(saver, TRIP)
        thread: Any = {"configurable": {"thread_id": TRIP}}
        steps = make_agent(sessions, saver).stream(
            {"messages": [("user", plan)]}, thread, control=control, stream_mode="updates"
        )
        try:
            for step in steps:
                for message in step.get("tools", {}).get("messages", ()):
                    print(message.content)
                    if not goes_on:
                        control.request_drain("the person has another idea")
        except GraphDrained:
            pass  # the step that was begun is finished, and all of it saved
        print("asleep in", hibernate_thread(saver, TRIP))


if __name__ == "__main__":
    main(sys.argv[1])
