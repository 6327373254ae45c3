"""In which order do the pieces of a compacted history stand, and what gives way when they are still too many?

System text first, then pinned messages, then what was kept of the beginning up to the first gap, then the
notes, then the rest in its old order. Notes behind the newest request speak as the assistant, notes before
it as a marked user message: the last thing a person said is always the newest request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentrm.context.digest import Digest, fact_value, message_of
from agentrm.context.groups import Group
from agentrm.context.messages import Message, Reasoning
from agentrm.context.summarize import fit
from agentrm.context.tokens import TokenCounter

NOTES_NAME = "agentrm_summary"


@dataclass(frozen=True, slots=True)
class Layout:
    """`kept` maps a group's index to its messages as they will be shown;

    `fixed` groups are shown as they are.
    """

    groups: Sequence[Group]
    fixed: frozenset[int]
    kept: Mapping[int, tuple[Message, ...]]
    digest: Digest | None
    request: str | None

    def smaller(self, excess: int, counter: TokenCounter) -> Layout | None:
        """The layout without its least valuable element; None when only what must stay is left.

        Lines and facts go first, cheapest value first, then prose, then kept groups from the oldest on; the
        newest group last, together with what is left of the notes.
        """
        digest = self.digest
        if digest is not None and digest.has_content:
            return replace(self, digest=_trim(digest, excess, counter))
        if digest is not None:
            return replace(self, digest=None)
        if self.kept:
            oldest = min(self.kept)
            return replace(self, kept={i: m for i, m in self.kept.items() if i != oldest})
        return None


def _trim(digest: Digest, excess: int, counter: TokenCounter) -> Digest:
    """Without what is worth least, at least `excess` tokens less, or empty."""
    newest = max((f.order for f in digest.facts), default=0)
    entries: list[tuple[float, int, str, int]] = []
    for i, line in enumerate(digest.lines):
        cost = counter.text(line.text) + 1
        entries.append((line.value / cost, cost, "line", i))
    for i, fact in enumerate(digest.facts):
        cost = counter.text(fact.line) + 1
        entries.append((0.1 * fact_value(fact, newest) / cost, cost, "fact", i))
    entries.sort()
    gone: set[tuple[str, int]] = set()
    freed = 0
    for _, cost, kind, i in entries:
        if freed >= excess:
            break
        gone.add((kind, i))
        freed += cost
    prose = digest.prose
    if freed < excess and prose:
        size = counter.text(prose)
        prose = fit(prose, max(0, size - (excess - freed) - 8), counter) if size > excess - freed + 8 else ""
    return replace(
        digest,
        lines=tuple(x for i, x in enumerate(digest.lines) if ("line", i) not in gone),
        facts=tuple(x for i, x in enumerate(digest.facts) if ("fact", i) not in gone),
        prose=prose,
    )


def lay_out(layout: Layout) -> list[Message]:
    """The messages in their final order."""
    groups = layout.groups
    shown = {i: groups[i].messages for i in layout.fixed} | dict(layout.kept)
    leading = 0
    while leading < len(groups) and groups[leading].kind == "system":
        leading += 1
    head = list(range(leading))
    head += [
        i for i in sorted(layout.fixed) if i >= leading and groups[i].pinned and groups[i].kind != "system"
    ]
    first = set(head)
    rest = [i for i in range(leading, len(groups)) if i not in first]
    out = [m for i in head for m in groups[i].messages]
    gap = next((n for n, i in enumerate(rest) if shown.get(i) is not groups[i].messages), len(rest))
    before, behind = rest[:gap], rest[gap:]
    out += [m for i in before for m in shown[i]]
    if layout.digest is not None and layout.digest.covered:
        answered = any(m.id == layout.request for m in out)
        role = "assistant" if answered else "user"
        out.append(message_of(layout.digest, role, NOTES_NAME, f"agentrm.notes.{layout.digest.covered}"))
    out += [m for i in behind if i in shown for m in shown[i]]
    return out


def first_change(before: Sequence[Message], after: Sequence[Message]) -> int:
    """The first place where the lists differ."""
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new and old != new:
            return index
    return min(len(before), len(after))


def strip_signed_reasoning(messages: Sequence[Message], start: int) -> list[Message]:
    """Signed reasoning from `start` on is taken out whole; a message that had nothing else goes with it."""
    out: list[Message] = []
    for index, message in enumerate(messages):
        if index >= start and any(isinstance(p, Reasoning) and p.signed for p in message.parts):
            parts = [p for p in message.parts if not (isinstance(p, Reasoning) and p.signed)]
            if not parts:
                continue
            message = message.with_parts(parts)
        out.append(message)
    return out
