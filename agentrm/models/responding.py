"""An answer or one tool call: the model decides which where it may, and writes only what it is free to write."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from agentrm.models import tools as calls
from agentrm.models.constrained import ConstrainedWriter
from agentrm.models.generation import Piece, TextStream, Usage
from agentrm.models.sequence import Sampler, TokenSequence
from agentrm.models.tokenizer import Tokenizer
from agentrm.models.tools import ToolSpec

_KEPT_SCORES = 64
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One call with tools. `offered`: those that it may choose from. `limit`: most tokens that the model writes."""

    messages: Messages
    offered: list[ToolSpec]
    tool_choice: str
    sampler: Sampler
    limit: int
    stop: Sequence[str]
    cancelled: Callable[[], bool]

    @property
    def decided(self) -> ToolSpec | None:
        """The tool, where there is nothing to choose."""
        return self.offered[0] if len(self.offered) == 1 and self.tool_choice != "auto" else None

    @property
    def may_answer(self) -> bool:
        return self.tool_choice == "auto"


class Responding:
    """Of one engine. `measure` opens a sequence after a prompt; what each set of tools is measured at is kept."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        measure: Callable[[Messages, Callable[[], bool]], AbstractContextManager[TokenSequence]],
    ) -> None:
        self._tokenizer, self._measure = tokenizer, measure
        self._content_free: dict[tuple[str, bool], list[float]] = {}

    def pieces(
        self, asked: Asked, opened: AbstractContextManager[TokenSequence], fixed: int
    ) -> Generator[Piece, None, None]:
        """Text, or a call's arguments. `fixed`: tokens of a call that are written whatever the model chooses."""
        tool = asked.decided
        # Before the call has a lane: with one lane it would wait for itself.
        free = [] if tool is not None else self._content_free_scores(asked)
        with opened as sequence:
            writer = ConstrainedWriter(sequence, self._tokenizer, asked.sampler, asked.limit - fixed)
            if tool is None:
                scores = calls.step_scores(sequence, self._tokenizer, asked.offered, may_answer=asked.may_answer)
                tool = calls.next_step(asked.offered, scores, free, asked.sampler)
            if tool is None:
                yield from sequence.text(TextStream(self._tokenizer, asked.limit, asked.stop), asked.sampler)
            else:
                yield from _write_call(writer, tool)

    def _content_free_scores(self, asked: Asked) -> list[float]:
        """Computed once per system message and set of tools. Two threads may both compute it: it is the same."""
        prompt = calls.content_free(asked.messages, asked.offered)
        key = (self._tokenizer.render(prompt), asked.may_answer)
        scores = self._content_free.get(key)
        if scores is None:
            with self._measure(prompt, asked.cancelled) as sequence:
                scores = calls.step_scores(sequence, self._tokenizer, asked.offered, may_answer=asked.may_answer)
            if len(self._content_free) >= _KEPT_SCORES:
                self._content_free.clear()
            self._content_free[key] = scores
        return scores


def _write_call(writer: ConstrainedWriter, tool: ToolSpec) -> Iterator[Piece]:
    prompt = len(writer.sequence)
    yield Piece("", tool=tool.name)
    for text in calls.write_call(writer, tool):
        yield Piece(text, tool=tool.name)
    written, known = len(writer.sequence) - prompt, writer.sequence.call.chain.known
    yield Piece("", usage=Usage(prompt, written, "tool_calls", known))
