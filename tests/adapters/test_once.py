"""Tool calls at most once: what came of a call is told again, also where its result can't be kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrm.adapters.conformance.harness import run_async
from agentrm.adapters.once import CallLog
from agentrm.context.sessions import SessionStore


def _run(log: CallLog, way: str, work: Any) -> Any:
    async def awork() -> Any:
        return work()

    if way == "run":
        return log.run("first", "book", work)
    return run_async(lambda: log.arun("first", "book", awork))


@pytest.mark.parametrize("way", ["run", "arun"])
@pytest.mark.parametrize("safe", [False, True])
def test_a_result_that_cannot_be_kept_is_handed_out_and_its_call_not_made_again(
    way: str, safe: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent:
        def __repr__(self) -> str:
            raise LookupError("nothing to show")

    results: list[Any] = [{1, 2}, Silent(), 10**6000]
    results.append(results)
    for i, result in enumerate(results):
        done: list[Any] = []

        def book(made: list[Any] = done, said: Any = result) -> Any:
            made.append(said)
            return said

        with SessionStore(tmp_path).open(f"s{i}") as session:
            log = CallLog(session, ["book"] if safe else [])
            assert _run(log, way, book) is result
        with SessionStore(tmp_path).open(f"s{i}") as session:
            again = _run(CallLog(session, ["book"] if safe else []), way, book)
        assert "tool 'book' gave a" in caplog.text
        if safe:
            assert again is result and len(done) == 2
        else:
            assert "outcome is unknown" in again and len(done) == 1
        caplog.clear()
