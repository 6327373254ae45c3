"""Summarisers by name: entry points of the group `agentrm.summarizers`, called as `factory(counter, **options)`.

`local` writes with a model that runs in this process (`agentrm models`); no text leaves it and nothing is paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrm.context.messages import Message
from agentrm.context.summarize import ModelSummarizer, Summarizer
from agentrm.context.tokens import TokenCounter
from agentrm.errors import ConfigError
from agentrm.extensions import load_extension
from agentrm.identity import identity

__all__ = ["GROUP", "load_summarizer", "local"]

GROUP = "agentrm.summarizers"
SMALLEST = "smollm2-135m"


def load_summarizer(name: str, counter: TokenCounter, **options: Any) -> Summarizer:
    """The summariser of that name. Raises ConfigError if it is not installed, can't be loaded or has no `summarize`;
    errors of its own making (a model that is not installed) pass through."""
    writer = load_extension(GROUP, name, "summarizer")(counter, **options)
    if not callable(getattr(writer, "summarize", None)):
        raise ConfigError("summarizer", name, "an object with the method summarize")
    return writer  # type: ignore[no-any-return]


def local(
    counter: TokenCounter,
    *,
    model: str = SMALLEST,
    device: str = "auto",
    manager: Any = None,
    pool: str | None = None,
    max_output_tokens: int = 256,
) -> ModelSummarizer:
    """A summariser over a local model, which is loaded here. With `manager` each call takes a lane of `pool` at
    background priority; in the model's own engine it is background work too. What a small model gets wrong,
    `ModelSummarizer` sorts out.

    Raises ModelError if the model can't be loaded. What the model reads is counted with its own tokenizer, not with
    `counter`."""
    from agentrm.models import LocalEngine

    engine = LocalEngine.shared(model, device=device)

    def call(messages: list[Message]) -> str:
        *talk, request = messages
        prompt = [{"role": "user", "content": f"{_transcript(talk)}\n\n{request.text}"}]
        with identity(agent="agentrm.compaction", priority="background"):
            return "".join(piece.text for piece in engine.generate(prompt, max_new_tokens=max_output_tokens))

    own = TokenCounter(engine.name, encode=engine.tokenizer.encode)
    return ModelSummarizer(
        call, engine.context, own, reply=max_output_tokens, manager=manager, pool=pool, model=engine.name
    )


def _transcript(messages: Sequence[Message]) -> str:
    """The conversation as plain text: small models take tool messages for nothing they know."""
    lines = []
    for message in messages:
        calls = "".join(f" [calls {call.name} {call.arguments}]" for call in message.calls)
        lines.append(f"{message.role}: {message.text}{calls}")
    return "\n".join(lines)
