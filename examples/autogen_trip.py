"""A team plans a trip. Half-way the person changes the plan: the team is stopped after its turn and put to sleep in one
file; the next start goes on with the new plan. What was booked stays booked, and is booked once, also when the process
is killed and the same plan is begun again.

OPENAI_API_KEY=... python examples/autogen_trip.py "A flight to Oslo, then a hotel and a museum there."
OPENAI_API_KEY=... python examples/autogen_trip.py "Keep the flight, but sleep in Bergen. No museum."
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import ExternalTermination, MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import ToolCallExecutionEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

import agentrm
from agentrm.context.sessions import SessionStore
from agentrm_autogen import CompactingContext, keep_in

TRIP = "trip"
BOOKINGS = Path("bookings.txt")
"""What happened in the world: one line for each booking."""

rm = agentrm.ResourceManager(pools={"default": {"lanes": 2}, "tools": {"lanes": 1}})


def book_flight(city: str) -> str:
    """Book a flight to a city."""
    return book(f"flight to {city}")


def book_hotel(city: str) -> str:
    """Book a hotel in a city."""
    return book(f"hotel in {city}")


def book(what: str) -> str:
    with BOOKINGS.open("a") as file:
        print(what, file=file)
    return f"booked: {what}"


def make_team(stop: ExternalTermination) -> RoundRobinGroupChat:
    client = OpenAIChatCompletionClient(model="gpt-4.1-mini")
    planner = AssistantAgent(
        "planner",
        client,
        system_message="Say what is to be booked next, one thing. Say DONE when all of the newest plan is booked.",
        model_context=CompactingContext(50_000),
    )
    booker = AssistantAgent(
        "booker",
        client,
        tools=[book_flight, book_hotel],
        reflect_on_tool_use=True,
        system_message="Book what the planner says, unless it is booked already.",
        model_context=CompactingContext(50_000),
    )
    ends = stop | TextMentionTermination("DONE", sources=["planner"]) | MaxMessageTermination(40)
    return rm.attach(RoundRobinGroupChat([planner, booker], termination_condition=ends), session=TRIP)


async def main(plan: str) -> None:
    stop = ExternalTermination()
    with SessionStore("trips/") as sessions:
        goes_on = sessions.exists(TRIP)
        with sessions.open(TRIP) as session:
            team = await keep_in(session, make_team(stop))
            async for message in team.run_stream(task=plan):
                if isinstance(message, ToolCallExecutionEvent):
                    print(*[result.content for result in message.content], sep="\n")
                    if not goes_on:
                        stop.set()  # the person has another idea: the turn ends, what was begun is finished
            print("asleep in", session.hibernate())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
