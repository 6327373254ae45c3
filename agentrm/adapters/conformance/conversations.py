"""Conformance: conversations that are put to sleep, brought back and forked, and histories that are compacted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrm.adapters.conformance.harness import Conversation, Harness, manager, run_async
from agentrm.adapters.conformance.lanes import _is_settled
from agentrm.adapters.conformance.provider import Provider, Reply
from agentrm.context.messages import Message, Text, ToolCall, ToolResult
from agentrm.context.pairs import is_valid
from agentrm.context.sessions import SessionStore

__all__ = ["Conversations"]


class Conversations:
    """See `agentrm.adapters.conformance`. A harness without `conversation`, `restored` or `compacted` skips the tests
    that need them."""

    harness: Harness

    def test_a_conversation_that_was_hibernated_goes_on_elsewhere_under_the_gate(self) -> None:
        rm, elsewhere = manager(), manager()
        with _stores() as (here, there):
            begun = self._conversation(rm, Provider(Reply(("first",))), here)
            assert run_async(lambda: begun.say("one")) == "first"
            file = run_async(begun.hibernate)
            gone_on = self._restored(elsewhere, Provider(Reply(("second",))), there, file)
            assert run_async(lambda: gone_on.say("two")) == "second"
            assert _in_order(["one", "first", "two", "second"], gone_on.texts())
            _is_settled(rm, granted=1)
            _is_settled(elsewhere, granted=1)

    def test_what_was_said_can_be_read_in_the_session_without_the_framework(self) -> None:
        with _stores() as (here, there):
            begun = self._conversation(manager(), Provider(Reply(("first",))), here)
            run_async(lambda: begun.say("one"))
            with there.restore(run_async(begun.hibernate)) as session:
                assert _in_order(["one", "first"], [message.text for message in session.messages()])
                assert is_valid(session.messages())

    def test_two_forks_of_a_conversation_go_on_apart(self) -> None:
        rm = manager()
        with _stores() as (here, there):
            begun = self._conversation(rm, Provider(Reply(("first",))), here)
            run_async(lambda: begun.say("one"))
            file = run_async(begun.hibernate)
            provider = Provider(Reply(("left answer",)), Reply(("right answer",)))
            left = self._restored(rm, provider, there, file, "left")
            right = self._restored(rm, provider, there, file, "right")
            run_async(lambda: left.say("go left"))
            run_async(lambda: right.say("go right"))
            assert _in_order(["one", "first", "go left", "left answer"], left.texts())
            assert _in_order(["one", "first", "go right", "right answer"], right.texts())
            assert not any("right" in text for text in left.texts())
            _is_settled(rm, granted=3)

    def test_a_compacted_history_is_valid_and_within_its_size(self) -> None:
        compacted: Callable[..., Any] = _of(self.harness, "compacted")
        history = _history(20)
        for max_tokens in (1500, 4000):
            shown = compacted(history, max_tokens)
            assert is_valid(shown), "a call lost its result, or a result its call"
            assert 0 < sum(len(message.text) for message in shown) < 6 * max_tokens
            assert "newest request" in shown[-1].text
            assert len(shown) < len(history)

    def _conversation(self, *args: Any) -> Conversation:
        return _of(self.harness, "conversation")(*args)  # type: ignore[no-any-return]

    def _restored(self, rm: Any, provider: Provider, store: SessionStore, file: Path, name: str | None = None) -> Any:
        return _of(self.harness, "restored")(rm, provider, store, file, name)


def _of(harness: Harness, name: str) -> Any:
    found = getattr(harness, name, None)
    if found is None:
        raise NotImplementedError(f"the harness has no {name}()")
    return found


@contextmanager
def _stores() -> Iterator[tuple[SessionStore, SessionStore]]:
    """Two machines' worth of sessions."""
    with (
        tempfile.TemporaryDirectory() as folder,
        SessionStore(Path(folder, "here"), fsync="never") as here,
        SessionStore(Path(folder, "there"), fsync="never") as there,
    ):
        yield here, there


def _in_order(wanted: list[str], texts: list[str]) -> bool:
    rest = iter(texts)
    return all(any(part in text for text in rest) for part in wanted)


def _history(turns: int) -> list[Message]:
    said = [Message("system", "system", (Text("You count things."),))]
    for i in range(turns):
        calls = tuple(ToolCall(f"call-{i}-{n}", "count", f'{{"n": {n}}}') for n in range(2))
        results = tuple(ToolResult(call.id, f"{'so many ' * 60}in {call.id}", name="count") for call in calls)
        said += [
            Message(f"user-{i}", "user", (Text(f"How many in /srv/{i}.csv?"),)),
            Message(f"calls-{i}", "assistant", calls),
            *[Message(f"result-{i}-{n}", "tool", (result,)) for n, result in enumerate(results)],
            Message(f"answer-{i}", "assistant", (Text("as many as before " * 20),)),
        ]
    return [*said, Message("newest", "user", (Text("the newest request"),))]
