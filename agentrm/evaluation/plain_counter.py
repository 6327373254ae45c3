"""How are tokens counted where published figures are to be compared?

Four characters each, as those figures do.
"""

from __future__ import annotations

from agentrm.context.messages import Message
from agentrm.context.token_kinds import KINDS
from agentrm.context.tokens import TokenCounter

PER_TOKEN = 4


def wire_text(message: Message) -> str:
    """What a model reads of a message: `name: text`, calls with their arguments, results."""
    text = message.text
    if message.name and not message.is_summary:
        text = f"{message.name}: {text}"
    calls = "".join(f"{c.name}{c.arguments}" for c in message.calls)
    return text + calls


class PlainCounter(TokenCounter):
    """Characters / 4 and nothing else."""

    def _measure(self, text: str) -> list[float]:
        out = [0.0] * len(KINDS)
        out[0] = len(text) / PER_TOKEN
        return out

    def _parts(self, message: Message) -> list[float]:
        return self._measure(wire_text(message))
