"""Generations as state machines: what each wants of the next forward, and what it does with the logits.

A work is advanced by the loop, one token at a time, and can stand still after any of them for as long as it must: all
of its state is in its chains, its sampler and its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentrm.models.engine.forward import Logits
from agentrm.models.generation import FinishReason, Piece, TextStream, Usage

if TYPE_CHECKING:
    import torch

    from agentrm.models.engine.store import Chain, Store
    from agentrm.models.sequence import Sampler


class Work(Protocol):
    """One generation, or one step of one."""

    @property
    def chains(self) -> Sequence[Chain]:
        """All that it runs on; those with pending tokens are fed."""
        ...

    @property
    def keep(self) -> int:
        """Of how many last tokens of each chain logits are wanted."""
        ...

    @property
    def written(self) -> int:
        """Tokens that it has written so far."""
        ...

    def receive(self, logits: Sequence[Logits], store: Store) -> bool:
        """One for each chain. True: it is done."""
        ...

    def conclude(self) -> None:
        """It was done, and all that it held is free again: only now its caller hears of the end."""
        ...

    def stop(self, error: BaseException | None) -> None:
        """It goes no further: cancelled by its caller (None), or because of an error."""
        ...


class TextWork:
    """Free text after a prompt. `show` gets each piece, and an error where one ended it."""

    keep = 1

    def __init__(
        self,
        chain: Chain,
        stream: TextStream,
        sampler: Sampler,
        show: Callable[[Piece | BaseException], object],
    ) -> None:
        self.chain, self.stream, self.sampler, self._show = chain, stream, sampler, show
        self.chains: Sequence[Chain] = (chain,)
        self.prompt = len(chain.tokens)
        """Tokens of the prompt."""
        self._last = ""

    @property
    def written(self) -> int:
        return self.stream.written

    def receive(self, logits: Sequence[Logits], store: Store) -> bool:
        token = logits[0].best if self.sampler.greedy else self.sampler.pick(logits[0].last())
        text = self.stream.take(token)
        if token not in self.stream.ends:
            self.chain.tokens.append(token)
        if self.stream.reason is None:
            if text:
                self._show(Piece(text))
            return False
        self._last = text
        return True

    def conclude(self) -> None:
        assert self.stream.reason is not None
        self._finish(self._last, self.stream.reason)

    def replay(self, tokens: Sequence[int]) -> None:
        """Brings the stream to where it was after these tokens of an earlier life. Nothing is shown again."""
        for token in tokens:
            self.stream.take(token)

    def stop(self, error: BaseException | None) -> None:
        if error is not None:
            self._show(error)
        else:
            self._finish("", "cancelled")

    def _finish(self, text: str, reason: FinishReason) -> None:
        usage = Usage(self.prompt, self.stream.written, reason, self.chain.known)
        self._show(Piece(text + self.stream.tail(), usage=usage))


class StepWork:
    """What `look` makes of the logits after the tokens that a chain has now (float32, on the CPU), for a caller who
    waits in its own thread."""

    written = 0

    def __init__(
        self, chain: Chain, keep: int, look: Callable[[torch.Tensor], object], give: Callable[[object], object]
    ) -> None:
        self.chains: Sequence[Chain] = (chain,)
        self.keep, self._look, self._give = keep, look, give

    def receive(self, logits: Sequence[Logits], store: Store) -> bool:
        try:
            seen = self._look(logits[0].scores.float().cpu())
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            seen = error
        self._give(seen)
        return True

    def conclude(self) -> None:
        """Its caller has heard."""

    def stop(self, error: BaseException | None) -> None:
        self._give(error)


@dataclass(frozen=True, slots=True)
class Beam:
    """One answer of a beam search. `score`: the sum of its tokens' log-probabilities over its length to the power of
    the search's `length_penalty`."""

    tokens: tuple[int, ...]
    score: float


class BeamWork:
    """The likeliest answers of at most `limit` tokens, by beam search of some width.

    The search ends when as many beams as it is wide have ended and no open one can get a better score, or at the limit.
    """

    keep = 1

    def __init__(
        self,
        chain: Chain,
        width: int,
        limit: int,
        penalty: float,
        ends: frozenset[int],
        give: Callable[[list[Beam] | BaseException | None], object],
    ) -> None:
        self.width, self.limit, self.penalty, self.ends, self._give = width, limit, penalty, ends, give
        self.prompt = len(chain.tokens)
        self.chains: Sequence[Chain] = (chain,)
        self.scores = [0.0]
        self.ended: list[Beam] = []
        self.written = 0

    def receive(self, logits: Sequence[Logits], store: Store) -> bool:
        import torch

        rows = torch.stack([one.last() for one in logits]).log_softmax(-1)
        totals = rows.double() + torch.tensor(self.scores, dtype=torch.double)[:, None]
        vocabulary = totals.shape[1]
        self.written += 1
        best = totals.flatten().topk(min(2 * self.width, totals.numel()))
        going: list[tuple[int, int, float]] = []
        for place, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            chain, token = self.chains[place // vocabulary], place % vocabulary
            if token in self.ends:
                self._end(chain, (token,), score)
            elif len(going) < self.width:
                going.append((place // vocabulary, token, score))
        self._go_on(going, store)
        if self.written >= self.limit:
            for chain, score in zip(self.chains, self.scores, strict=True):
                self._end(chain, (), score)
        elif going and not (len(self.ended) >= self.width and self._weigh(going[0][2]) <= self.ended[-1].score):
            return False
        return True

    def conclude(self) -> None:
        self._give(self.ended)

    def _go_on(self, going: Sequence[tuple[int, int, float]], store: Store) -> None:
        """Each survivor takes over its parent's chain; where a parent has several, the others fork it first."""
        old, new = list(self.chains), list["Chain"]()
        parents = [parent for parent, _, _ in going]
        for i, (parent, token, _) in enumerate(going):
            chain = store.fork(old[parent]) if parent in parents[i + 1 :] else old[parent]
            chain.tokens.append(token)
            new.append(chain)
        for i, chain in enumerate(old):
            if i not in parents:
                store.drop(chain)
        self.chains, self.scores = new, [score for _, _, score in going]

    def _end(self, chain: Chain, more: tuple[int, ...], score: float) -> None:
        self.ended.append(Beam((*chain.tokens[self.prompt :], *more), self._weigh(score)))
        self.ended.sort(key=lambda beam: -beam.score)
        del self.ended[self.width :]

    def _weigh(self, score: float) -> float:
        """The sum over the length so far to the power of the penalty."""
        return score / float(self.written**self.penalty)

    def stop(self, error: BaseException | None) -> None:
        self._give(error)


