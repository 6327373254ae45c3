"""What is left of a long tool result when it must be short? Its head, its tail and its key lines.

Lines are whole lines of the text, in order; what is left out is named by number of lines or characters and
by the message id under which the whole can be recalled. Text parts are shortened, media parts of a result
stay or go whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from agentrm.context.keyinfo import opaque_strings
from agentrm.context.keyinfo_patterns import KINDS
from agentrm.context.messages import SHORTENED, Message, Text, ToolResult
from agentrm.context.tokens import TokenCounter

_HEAD, _TAIL = 0.4, 0.3  # shares of the room; key lines get the rest
_KEY = re.compile(
    r"\b(?:warning|summary|total|result|passed|assert\w*|raise|def |class |diff --git|\+\+\+ )", re.IGNORECASE
)
_ROUGH = 3.2  # characters a token at the least, for the first cut


def shorten_text(text: str, tokens: int, counter: TokenCounter, source: str) -> str:
    """At most `tokens` tokens of the text, with a line that says what was left out.

    Short texts come back unchanged.
    """
    if counter.text(text) <= tokens:
        return text
    room = max(0, int((tokens - 16) * _ROUGH))
    while True:
        short = _cut(text, room, source)
        size = counter.text(short)
        if size <= tokens or room == 0:
            return short if size <= tokens else ""
        room = int(room * min(0.9, tokens / size)) if room > 8 else 0


def _cut(text: str, room: int, source: str) -> str:
    head_room, tail_room = int(room * _HEAD), int(room * _TAIL)
    head = _whole_lines(text[:head_room], from_end=False) if head_room else ""
    tail = _whole_lines(text[-tail_room:], from_end=True) if tail_room else ""
    middle = text[len(head) : len(text) - len(tail)]
    keys = _key_lines(middle, room - len(head) - len(tail))
    gone = len(middle) - sum(len(k) + 1 for k in keys)
    mark = f"[... {max(gone, 0)} characters left out; whole text: recall {source}]"
    return "\n".join(p for p in (head.rstrip("\n"), *keys, mark, tail.lstrip("\n")) if p)


def _whole_lines(text: str, *, from_end: bool) -> str:
    """Up to a line border, unless that would lose more than half."""
    if from_end:
        at = text.find("\n")
        return text[at + 1 :] if 0 <= at < len(text) // 2 else text
    at = text.rfind("\n")
    return text[: at + 1] if at > len(text) // 2 else text


def _key_lines(text: str, room: int) -> list[str]:
    if room < 40:
        return []
    scored: list[tuple[float, int, str]] = []
    for number, line in enumerate(text[:200_000].splitlines()):
        line = line.strip()
        if not 4 <= len(line) <= 300:
            continue
        score = 3.0 * bool(KINDS["error"].search(line)) + 1.5 * bool(_KEY.search(line))
        score += 0.3 * min(4, len(opaque_strings(line)))
        if score > 0.5:
            scored.append((score / (20 + len(line)), number, line))
    out: list[tuple[int, str]] = []
    for _, number, line in sorted(scored, key=lambda s: (-s[0], s[1])):
        if len(line) + 1 <= room:
            out.append((number, line))
            room -= len(line) + 1
        if len(out) >= 40:
            break
    return [line for _, line in sorted(out)]


def shorten_results(
    messages: Sequence[Message], tokens: int, counter: TokenCounter
) -> tuple[Message, ...] | None:
    """The messages with their tool results cut so that all together have at most `tokens` tokens; None if
    that cannot be.

    Calls and texts stay as they are: only results give way, the longest first.
    """
    sizes = [counter.message(m) for m in messages]
    total = counter.messages(messages)
    if total <= tokens:
        return tuple(messages)
    results = [i for i, m in enumerate(messages) if m.results]
    fixed = total - sum(sizes[i] for i in results)
    room = tokens - fixed - 2
    if not results or room < 24 * len(results):
        return None
    share = _level([sizes[i] for i in results], room)
    out = list(messages)
    for i in results:
        if sizes[i] > share:
            out[i] = _shorten_message(messages[i], share, sizes[i], counter)
    return tuple(out) if counter.messages(out) <= tokens else None


def _level(sizes: list[int], room: int) -> int:
    """The cap under which the sizes, cut to it, fill the room."""
    left = room
    for position, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - position)
        if size > share:
            return share
        left -= size
    return room


def _shorten_message(message: Message, tokens: int, size: int, counter: TokenCounter) -> Message:
    texts = sum(counter.text(r.text) for r in message.results)
    room = max(0, tokens - (size - texts)) // max(1, len(message.results))
    parts: list[ToolResult] = []
    for result in message.results:
        source = message.id
        if isinstance(result.content, str):
            parts.append(replace(result, content=shorten_text(result.content, room, counter, source)))
            continue
        short = shorten_text(result.text, room, counter, source)
        parts.append(replace(result, content=(Text(short),)))
    others = [p for p in message.parts if not isinstance(p, ToolResult)]
    return message.with_parts([*others, *parts]).with_flags(SHORTENED)
