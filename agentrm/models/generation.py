"""Free text from a model, token by token: stop strings, whole characters, an account of the tokens at the
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentrm.models.tokenizer import Tokenizer

FinishReason = Literal["stop", "length", "cancelled", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call: of the prompt, and of everything that was written, end mark and fixed text
    included. Of the prompt's, `cached_tokens` were known from earlier calls and not computed again.
    """

    input_tokens: int
    output_tokens: int
    finish_reason: FinishReason
    cached_tokens: int = 0


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


class TextStream:
    """Text of at most `limit` tokens as they come. `reason` is None until it has ended; its state follows from the
    tokens alone, so that a resumed stream goes on where it was.
    """

    __slots__ = ("_decoder", "_filtered", "_tokenizer", "limit", "reason", "stops", "written")

    def __init__(self, tokenizer: Tokenizer, limit: int, stops: Sequence[str]) -> None:
        self._tokenizer, self.limit, self.stops = tokenizer, limit, tuple(stops)
        self._decoder, self._filtered = tokenizer.detokenizer(), StopStrings(stops)
        self.written = 0
        """Tokens, the end mark included."""
        self.reason: FinishReason | None = None

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end an answer and are no part of it."""
        return self._tokenizer.end_ids

    def take(self, token: int) -> str:
        """What may be shown now that this token has come."""
        self.written += 1
        text = ""
        if token in self.ends:
            self.reason = "stop"
        else:
            text = self._filtered.feed(self._decoder.decode(self._tokenizer.token_bytes[token] or b""))
            if self._filtered.found:
                self.reason = "stop"
            elif self.written >= self.limit:
                self.reason = "length"
        return text

    def tail(self) -> str:
        """What was held back, at the end."""
        if self._filtered.found:
            return ""
        return self._filtered.feed(self._decoder.decode(b"", True)) + self._filtered.rest()
