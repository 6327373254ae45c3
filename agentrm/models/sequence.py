"""How a token is drawn from logits, and one call's tokens as whoever writes them sees them."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from agentrm.models.engine.works import TextWork
from agentrm.models.errors import GenerationCancelled
from agentrm.models.generation import Piece, TextStream

if TYPE_CHECKING:
    import torch

    from agentrm.models.engine.calls import Call
    from agentrm.models.engine.loop import Loop

T = TypeVar("T")


class TokenSequence:
    """The tokens of one call, for code that looks at logits itself: a choice, a constrained value. Used by one thread
    at a time; the loop computes meanwhile for others.

    Tokens that are appended are fed to the model when logits are next asked for, together. A call that was cancelled
    raises GenerationCancelled then.
    """

    __slots__ = ("_loop", "_tokens", "call")

    def __init__(self, loop: Loop, call: Call, tokens: Sequence[int]) -> None:
        self._loop, self.call, self._tokens = loop, call, list(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    def append(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def rewind(self, length: int) -> None:
        """Forgets every token after the first `length`."""
        del self._tokens[length:]

    def logits(self) -> torch.Tensor:
        """Float32 logits, on the CPU, of the token that follows. Raises GenerationCancelled."""
        return self._after(self._tokens, 1, lambda rows: rows[0])

    def ranked(self, sampler: Sampler) -> Iterator[int]:
        """The sampler's order of what may follow. Raises GenerationCancelled."""

        def begun(rows: torch.Tensor) -> Iterator[int]:
            order = sampler.ranked(rows[0])
            return chain([next(order)], order)

        return self._after(self._tokens, 1, begun)

    def log_probabilities(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """The natural logarithm of how likely each continuation is; the sequence stays as it was.

        Raises GenerationCancelled.
        """
        first = self._after(self._tokens, 1, lambda rows: rows[0].log_softmax(-1))
        out = []
        for tokens in continuations:
            total = float(first[tokens[0]])
            if len(tokens) > 1:
                written = [*self._tokens, *tokens[:-1]]
                rows = self._after(written, len(tokens) - 1, lambda rows: rows.log_softmax(-1))
                total += sum(float(row[token]) for row, token in zip(rows, tokens[1:], strict=True))
            out.append(total)
        return out

    def text(self, stream: TextStream, sampler: Sampler) -> Iterator[Piece]:
        """Lets the model write on freely. The call ends with it."""
        came: queue.SimpleQueue[Piece | BaseException] = queue.SimpleQueue()
        self._loop.go_on(self.call, list(self._tokens), lambda: TextWork(self.call.chain, stream, sampler, came.put))
        while True:
            piece = self._loop.thread.wait(came)
            if isinstance(piece, BaseException):
                raise piece
            yield piece
            if piece.usage is not None:
                return

    def _after(self, tokens: Sequence[int], keep: int, look: Callable[[torch.Tensor], T]) -> T:
        """What `look` makes of the logits, in the loop's thread: see `apart` for why not in this one."""
        answer: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()
        self._loop.step(self.call, list(tokens), keep, lambda logits: (look(logits),), answer.put)
        seen = self._loop.thread.wait(answer)
        if seen is None:
            raise GenerationCancelled("the generation was cancelled by its caller; nothing is left running")
        if isinstance(seen, BaseException):
            raise seen
        return seen[0]


class Sampler:
    """Draws tokens: the likeliest at temperature 0, else from softmax(logits / temperature).

    Drawing adds Gumbel noise and takes the best, which is sampling without replacement when more than one is
    taken in order: so the first token in `ranked` that a constraint accepts is distributed as if the
    constraint had masked the others. The generator is the call's own and runs on the CPU: a seed means the
    same on every device.
    """

    __slots__ = ("_generator", "temperature")

    def __init__(self, temperature: float, seed: int | None) -> None:
        import torch

        self.temperature = temperature
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def state(self) -> torch.Tensor:
        """Where the generator is: bytes, which another sampler can go on from."""
        return self._generator.get_state()

    @state.setter
    def state(self, state: torch.Tensor) -> None:
        self._generator.set_state(state)

    def pick(self, logits: torch.Tensor) -> int:
        return int(self._scores(logits).argmax())

    def ranked(self, logits: torch.Tensor) -> Iterator[int]:
        """Every token once, in the order in which it would be drawn. Most callers need only the first few."""
        scores = self._scores(logits)
        first: list[int] = scores.topk(min(64, len(scores))).indices.tolist()
        yield from first
        taken = set(first)
        for token in scores.argsort(descending=True).tolist():
            if token not in taken:
                yield token

    def _scores(self, logits: torch.Tensor) -> torch.Tensor:
        import torch

        if self.greedy:
            return logits
        noise = torch.empty_like(logits).exponential_(generator=self._generator).log_()
        if self.temperature < 1:  # the same order, and no division by next to nothing
            return logits - self.temperature * noise
        return logits / self.temperature - noise
