"""One call's tokens: its KV cache, the logits of what comes next, and how a token is drawn from them.

Everything that changes while a model generates is in these objects, one pair per call, so that any number of
threads can generate on the same weights at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from agentrm.models.errors import GenerationCancelled

if TYPE_CHECKING:
    import torch

PREFILL_CHUNK = 256  # tokens per forward of a prompt: a cancel goes unseen for that long (0.5 s on a CPU)


def cache_argument(model: torch.nn.Module) -> str:
    """The name of forward's cache argument: transformers from 5.20 on calls it `cache`.

    Older ones take that name without complaint and ignore it, so the signature decides, not a try.
    """
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class TokenSequence:
    """The tokens of one call and their KV cache. Used by one thread at a time.

    Tokens that are appended are fed to the model when logits are next asked for, together. `cancelled` is
    asked before each forward; once it says yes, `logits` raises GenerationCancelled.
    """

    __slots__ = ("_argument", "_cache", "_device", "_fed", "_model", "_tokens", "cancelled")

    def __init__(
        self,
        model: torch.nn.Module,
        argument: str,
        device: torch.device,
        tokens: Sequence[int],
        cancelled: Callable[[], bool],
    ) -> None:
        from transformers import DynamicCache

        self._model, self._argument, self._device = model, argument, device
        self._cache: Any = DynamicCache(config=cast("Any", model.config))
        self._tokens, self._fed, self.cancelled = list(tokens), 0, cancelled

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def rewind(self, length: int) -> None:
        """Forgets every token after the first `length`."""
        if self._fed > length:
            self._cache.crop(length - self._fed)  # negative: the one form that all versions read alike
            self._fed = length
        del self._tokens[length:]

    def logits(self) -> torch.Tensor:
        """Float32 logits, on the CPU, of the token that follows. Raises GenerationCancelled."""
        if self._fed == len(self._tokens):  # after a rewind: the last token has to be fed again
            self._cache.crop(-1)
            self._fed -= 1
        while True:
            chunk = self._tokens[self._fed : self._fed + PREFILL_CHUNK]
            logits = self._forward(chunk, keep=1)
            if self._fed == len(self._tokens):
                return logits[0]

    def log_probabilities(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """The natural logarithm of how likely each continuation is; the sequence stays as it was.

        Raises GenerationCancelled.
        """
        first, start = self.logits().log_softmax(-1), len(self)
        out = []
        for tokens in continuations:
            total = float(first[tokens[0]])
            if len(tokens) > 1:
                self.append(tokens[:-1])
                rows = self._forward(tokens[:-1], keep=len(tokens) - 1).log_softmax(-1)
                total += sum(float(row[token]) for row, token in zip(rows, tokens[1:], strict=True))
                self.rewind(start)
            out.append(total)
        return out

    def _forward(self, chunk: Sequence[int], keep: int) -> torch.Tensor:
        import torch

        if self.cancelled():
            raise GenerationCancelled("the generation was cancelled by its caller; nothing is left running")
        with torch.inference_mode():
            out = self._model(
                torch.tensor([chunk], device=self._device),
                use_cache=True,
                logits_to_keep=keep,
                **{self._argument: self._cache},
            )
        self._fed += len(chunk)
        rows: torch.Tensor = out.logits[0].float().cpu()
        return rows


class Sampler:
    """Draws tokens: the likeliest at temperature 0, else from softmax(logits / temperature).

    Drawing adds Gumbel noise and takes the best, which is sampling without replacement when more than one is
    taken in order: so the first token in `ranked` that a constraint accepts is distributed as if the
    constraint had masked the others. The generator is the call's own and runs on the CPU: a seed means the
    same on every device.
    """

    __slots__ = ("_generator", "_temperature")

    def __init__(self, temperature: float, seed: int | None) -> None:
        import torch

        self._temperature = temperature
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

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

        if self._temperature == 0:
            return logits
        noise = torch.empty_like(logits).exponential_(generator=self._generator).log_()
        return logits / self._temperature - noise
