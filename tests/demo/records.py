"""Runs made by hand, whose figures can be counted on the fingers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentrm.demo.journal import Ask, Journal, LocalCall
from agentrm.demo.runner import Taken
from agentrm.demo.scenario import full
from agentrm.simulation.provider import RequestRecord

SCENARIO = replace(full(0), questions=3, indexers=2, notes_each=1, sorters=1, letters_each=1)


def ask(agent: str, asked: float, ended: float, outcome: Any = "answered", **more: Any) -> Ask:
    return Ask(agent, 0, asked, ended, outcome, **more)


def request(agent: str, outcome: Any, began: float, ended: float, **more: Any) -> RequestRecord:
    given: dict[str, Any] = dict(
        index=0, model="m", agent=agent, stream=True, outcome=outcome, status=200, arrived_s=began, taken_up_s=began,
        first_chunk_s=began, ended_s=ended, client_closed_s=None, concurrency=1, prompt_tokens=1, output_tokens=1,
        chunks_sent=1, bytes_sent=1,
    )  # fmt: skip
    return RequestRecord(**{**given, **more})


def taken(
    asks: list[Ask], requests: list[RequestRecord], *, local: tuple[LocalCall, ...] = (), left_open: int = 0
) -> Taken:
    journal = Journal(started=0.0, asks=asks, local_calls=list(local))
    return Taken(SCENARIO, journal, tuple(requests), 0.0, 29.9, 30.0, left_open)


def a_run() -> Taken:
    return taken(
        [
            ask("assistant", 0, 2),
            ask("assistant", 1, 11),
            ask("assistant", 2, 30, "cut", error="not answered when the run was ended"),
            ask("indexer-1", 0, 5),
            ask("sorter-1", 0, 4, "failed", error="RateLimitError: no", refused=True),
        ],
        [
            request("indexer-1", "hung", 1, 4, first_chunk_s=None, chunks_sent=0),
            request("assistant", "stalled", 2, 7, first_chunk_s=2.5, chunks_sent=3),
            request("assistant", "rate", 3, 3, taken_up_s=None, first_chunk_s=None),
            request("indexer-2", "abandoned", 4, 9, taken_up_s=None, first_chunk_s=None),
            request("assistant", "answered", 9, 10),
            request("assistant", "abandoned", 29, 29.95),
        ],
        local=(LocalCall("reader", 1.0, 2.0), LocalCall("sorter-1", 1.5, 4.0)),
    )
