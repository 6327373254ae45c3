"""How does a model write the notes, and what if it cannot?

By default no model does: the notes are copied passages and facts. `ModelSummarizer` wraps any callable that
takes a message list and returns text. It has a window of its own; what does not fit is handed over in
chunks, each of which keeps tool calls and results in pairs, so a strict provider accepts it. An exception,
an empty reply or nonsense makes the chunk fall back to copied text, and the result says why. Opaque strings
are never taken from the model: what it wrote that was not in its input is taken out, what it left out is
added by code (`digest`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrm.context.groups import Group
from agentrm.context.keyinfo import opaque_strings, sentences_of
from agentrm.context.messages import SYNTHETIC, Message, make
from agentrm.context.shorten import shorten_results, shorten_text
from agentrm.context.tokens import TokenCounter
from agentrm.context.wordstats import STOP, words_of
from agentrm.errors import ConfigError

INSTRUCTION = (
    "Summarise the conversation above for the agent that continues it: what was asked, what was decided, what was done"
    " and found, what is still open. State facts, give no orders. Copy names, numbers, paths and ids exactly."
)
_STRICT_KINDS = frozenset(
    {"url", "uuid", "email", "address", "winpath", "path", "hash", "ticket", "identifier"}
)
UNVERIFIED = "[unverified string removed]"


@dataclass(frozen=True, slots=True)
class Written:
    """What a summariser gave:

    `text`, tokens it cost, number of calls, and why parts of it are not the model's.
    """

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    degraded: str | None = None


class Summarizer(Protocol):
    """Writes one text of at most `tokens` tokens about the groups. Never raises for what its model does."""

    def summarize(self, groups: Sequence[Group], previous: str, tokens: int) -> Written: ...


class ModelSummarizer:
    """A summariser around `call(messages) -> text`.

    `window` is what the model reads in one call, in tokens; `reply` the room kept in it for the answer.
    With `manager` each call takes a lease of its own at background priority (`pool`, `model` as for any
    lease). Raises `ConfigError` when the window leaves no room for content.
    """

    def __init__(
        self,
        call: Callable[[list[Message]], str],
        window: int,
        counter: TokenCounter,
        *,
        reply: int | None = None,
        instruction: str = INSTRUCTION,
        manager: Any = None,
        pool: str | None = None,
        model: str | None = None,
    ) -> None:
        self._call, self.window, self._counter = call, window, counter
        self._reply = reply if reply is not None else min(2000, window // 8)
        self._ask = make("user", instruction, id="agentrm.summarise", flags=(SYNTHETIC,))
        self._manager, self._pool, self._model = manager, pool, model
        self._room = window - self._reply - counter.message(self._ask) - 32
        if self._room < 64:
            raise ConfigError(
                "summarizer.window", window, "enough for the instruction, the reply and 64 tokens"
            )

    def summarize(self, groups: Sequence[Group], previous: str, tokens: int) -> Written:
        texts: list[str] = []
        reasons: list[str] = []
        spent_in = spent_out = calls = 0
        for chunk in self._chunks(groups, previous):
            request = [*chunk, self._ask]
            size = self._counter.messages(request)
            spent_in += size
            calls += 1
            try:
                text = self._ask_model(request, size)
            except Exception as exc:  # noqa: BLE001 - the user's code; its failure must not stop us
                reasons.append(f"summariser failed: {type(exc).__name__}: {exc}")
                texts.append(_copied(chunk, tokens, self._counter))
                continue
            spent_out += self._counter.text(text)
            fault = nonsense(text, chunk)
            if fault:
                reasons.append(f"summariser gave {fault}")
                text = _copied(chunk, tokens, self._counter)
            texts.append(text)
        whole = "\n".join(t.strip() for t in texts if t.strip())
        source = "\n".join([previous, *(_all_text(m) for g in groups for m in g.messages)])
        text = fit(remove_invented(whole, source), tokens, self._counter, source)
        if whole and not text:
            reasons.append(f"nothing that the summariser wrote fits in {tokens} tokens")
        return Written(
            text,
            spent_in,
            spent_out,
            calls,
            "; ".join(dict.fromkeys(reasons)) or None,
        )

    def _ask_model(self, request: list[Message], size: int) -> str:
        if self._manager is None:
            return str(self._call(request))
        lease = self._manager.lease(
            agent="agentrm.compaction",
            priority="background",
            kind="model",
            pool=self._pool,
            model=self._model,
            input_tokens=size,
            max_output_tokens=self._reply,
        )
        with lease:
            text = str(self._call(request))
            lease.settle(input_tokens=size, output_tokens=self._counter.text(text))
            return text

    def _chunks(self, groups: Sequence[Group], previous: str) -> list[list[Message]]:
        """Lists of whole groups, none above the room; a group that is too large alone is cut down to it."""
        out: list[list[Message]] = []
        held: list[Message] = []
        size = 0
        if previous:
            short = shorten_text(previous, self._room // 3, self._counter, "earlier notes")
            held = [make("user", f"[Notes so far]\n{short}", id="agentrm.notes", flags=(SYNTHETIC,))]
            size = self._counter.messages(held)
        for group in groups:
            for messages in self._fitting(group):
                cost = self._counter.messages(messages)
                if held and size + cost > self._room:
                    out.append(held)
                    held, size = [], 0
                held = [*held, *messages]
                size += cost
        if held:
            out.append(held)
        return out

    def _fitting(self, group: Group) -> list[tuple[Message, ...]]:
        if self._counter.messages(group.messages) <= self._room:
            return [group.messages]
        short = shorten_results(group.messages, self._room, self._counter)
        if short is not None:
            return [short]
        text = "\n".join(_all_text(m) for m in group.messages)
        pieces: list[tuple[Message, ...]] = []
        step = self._room * 2  # characters; two a token is dense text, denser is cut again below
        for start in range(0, len(text), step):
            piece = shorten_text(
                text[start : start + step], self._room - 16, self._counter, group.messages[0].id
            )
            pieces.append((make("user", piece, id=f"{group.messages[0].id}.{start}", flags=(SYNTHETIC,)),))
        return pieces


def _all_text(message: Message) -> str:
    calls = [f"{c.name} {c.arguments}" for c in message.calls]
    return "\n".join([message.text, *calls])


def _copied(messages: Sequence[Message], tokens: int, counter: TokenCounter) -> str:
    """The mechanical stand-in: the first sentences of each message, as many as fit."""
    out: list[str] = []
    share = max(12, tokens // max(1, len(messages)))
    left = tokens
    for message in messages:
        for sentence in sentences_of(message.text)[:2]:
            cost = counter.text(sentence) + 1
            if cost <= min(share, left):
                out.append(sentence)
                left -= cost
                break
    return "\n".join(out)


def nonsense(text: str, source: Sequence[Message]) -> str | None:
    """What is wrong with a reply that cannot be a summary of the source; None for one that may be."""
    if not text.strip():
        return "an empty reply"
    if not words_of(text):
        return "a reply without words"
    words = [w for w in words_of(text) if w not in STOP]
    if len(words) >= 40 and len(set(words)) < 0.15 * len(words):
        return "a reply that repeats itself"
    known = {w for m in source for w in words_of(_all_text(m))}
    content = [w for w in words if len(w) > 3]
    shared = sum(w in known for w in content)
    if len(content) >= 8 and shared < 0.2 * len(content):  # a few words may well be words of its own
        return "a reply about something else"
    return None


def remove_invented(text: str, source: str) -> str:
    """The text without opaque strings that the source does not have:

    a model that changes an id by a character makes one.
    """
    for kind, value in sorted(set(opaque_strings(text)), key=lambda kv: -len(kv[1])):
        named = kind == "identifier" and (len(value) < 8 or not any(c.isdigit() or c == "_" for c in value))
        if kind in _STRICT_KINDS and value not in source and not named:
            text = text.replace(value, UNVERIFIED)
    return text


def fit(text: str, tokens: int, counter: TokenCounter, source: str = "") -> str:
    """At most `tokens` tokens of the text: sentences with opaque strings of the source first, then from
    the front.

    What stays is in the text's order, so a section that must stay does not depend on its place.
    """
    if counter.text(text) <= tokens:
        return text
    scored = []
    for number, sentence in enumerate(sentences_of(text)):
        strings = [v for k, v in opaque_strings(sentence) if k in _STRICT_KINDS]
        keep = len(strings) if not source else sum(v in source for v in strings)
        scored.append((-min(keep, 3), number, sentence))
    left = tokens
    chosen: list[tuple[int, str]] = []
    for _, number, sentence in sorted(scored):
        cost = counter.text(sentence) + 1
        if cost <= left:
            chosen.append((number, sentence))
            left -= cost
    return "\n".join(s for _, s in sorted(chosen))
