"""Free text from a model, token by token: stop strings, whole characters, an account of the tokens at the
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentrm.models.errors import GenerationCancelled
from agentrm.models.sequence import Sampler, TokenSequence
from agentrm.models.tokenizer import Tokenizer

FinishReason = Literal["stop", "length", "cancelled", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call: of the prompt, and of everything that was written, end mark and fixed text
    included.
    """

    input_tokens: int
    output_tokens: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Piece:
    """A fragment of an answer. The last one of a call, and only it, carries the usage; its text may be
    empty.

    In a tool call `tool` names the tool on every piece but the last, and `text` is a fragment of its JSON
    arguments.
    """

    text: str
    tool: str | None = None
    usage: Usage | None = None


class StopStrings:
    """Cuts text at the first stop string, which may arrive in fragments; holds back what may be its
    beginning.
    """

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held, self.found = tuple(stops), "", False

    def feed(self, text: str) -> str:
        """What may be shown of the text so far."""
        self._held += text
        cuts = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if cuts:
            self.found = True
            shown, self._held = self._held[: min(cuts)], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def rest(self) -> str:
        """What was held back, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, stop: str) -> int:
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)


def write_text(
    sequence: TokenSequence,
    tokenizer: Tokenizer,
    sampler: Sampler,
    limit: int,
    stops: Sequence[str],
) -> Iterator[Piece]:
    """Generates up to `limit` tokens after the sequence.

    A cancel ends the text at a token boundary, with the usage so far and the reason "cancelled".
    """
    prompt, written = len(sequence), 0
    reason: FinishReason = "length"
    decoder, filtered = tokenizer.detokenizer(), StopStrings(stops)
    while written < limit:
        try:
            token = sampler.pick(sequence.logits())
        except GenerationCancelled:
            reason = "cancelled"
            break
        written += 1
        if token in tokenizer.end_ids:
            reason = "stop"
            break
        sequence.append([token])
        if text := filtered.feed(decoder.decode(tokenizer.token_bytes[token] or b"")):
            yield Piece(text)
        if filtered.found:
            reason = "stop"
            break
    tail = "" if filtered.found else filtered.feed(decoder.decode(b"", True)) + filtered.rest()
    yield Piece(tail, usage=Usage(prompt, written, reason))
