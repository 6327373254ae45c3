"""Short notation for histories, and random ones: S, U, A, A(calls), T(call)."""

from __future__ import annotations

from hypothesis import strategies as st

from agentrm.context.messages import PINNED, Message, Reasoning, Text, ToolCall, ToolResult


class StrictProvider:
    """Refuses what real providers refuse: any break of the pairing, a wrong signature, too many tokens."""

    def __init__(self, signatures: dict[str, tuple[str, tuple[str, ...]]] | None = None) -> None:
        self.signatures = signatures or {}
        self.requests = 0

    def send(self, messages: list[Message]) -> str:
        self.requests += 1
        waiting: set[str] = set()
        known: set[str] = set()
        for index, message in enumerate(messages):
            if message.role == "tool":
                for result in message.results:
                    if result.call_id not in waiting:
                        raise ValueError(f"400: tool result {result.call_id} has no call before it")
                    waiting.remove(result.call_id)
            elif waiting:
                raise ValueError(f"400: calls {waiting} have no result before message {index}")
            for call in message.calls:
                if call.id in known:
                    raise ValueError(f"400: call id {call.id} is not unique")
                known.add(call.id)
                waiting.add(call.id)
            for block in message.reasoning:
                if block.signature in self.signatures:
                    text, prefix = self.signatures[block.signature]
                    if block.text != text or tuple(m.id for m in messages[:index]) != prefix:
                        raise ValueError("400: signature does not match")
        if waiting:
            raise ValueError(f"400: calls {waiting} have no result")
        return "ok"


def S(text: str, id: str = "s") -> Message:
    return Message(id, "system", (Text(text),))


def U(text: str, id: str, *flags: str) -> Message:
    return Message(id, "user", (Text(text),), flags=frozenset(flags))


def A(text: str, id: str, *calls: str, arguments: str = "{}") -> Message:
    parts = ((Text(text),) if text else ()) + tuple(ToolCall(c, "tool", arguments) for c in calls)
    return Message(id, "assistant", parts)


def T(call: str, text: str = "done", id: str = "") -> Message:
    return Message(id or f"t-{call}", "tool", (ToolResult(call, text),))


def turns(count: int, words: int = 20, start: int = 0) -> list[Message]:
    """`count` user and assistant messages with their own words."""
    out = []
    for n in range(start, start + count):
        body = " ".join(f"word{(n * 7 + k) % 97}" for k in range(words))
        out.append(U(f"Question {n}: {body}?", f"u{n}") if n % 2 == 0 else A(f"Answer {n}: {body}.", f"a{n}"))
    return out


_words = st.lists(
    st.sampled_from("alpha beta gamma /srv/x.py 42 error id_7 done not".split()), min_size=1, max_size=60
)
_body = _words.map(" ".join)


@st.composite
def histories(draw, broken: bool = False):
    """A random history: system text, pins, parallel calls, lost calls, orphans and reasoning; valid unless `broken`."""
    out: list[Message] = [S(draw(_body))] if draw(st.booleans()) else []
    count = draw(st.integers(1, 14))
    for n in range(count):
        kind = draw(st.sampled_from(("user", "assistant", "tools", "tools", "pinned")))
        if kind == "user":
            out.append(U(draw(_body), f"u{n}"))
        elif kind == "pinned":
            out.append(U(draw(_body), f"p{n}", PINNED))
        elif kind == "assistant":
            reasoning = (Reasoning(draw(_body), f"sig{n}"),) if draw(st.booleans()) else ()
            out.append(Message(f"a{n}", "assistant", (*reasoning, Text(draw(_body)))))
        else:
            calls = [f"c{n}.{k}" for k in range(draw(st.integers(1, 3)))]
            out.append(A(draw(_body), f"a{n}", *calls))
            results = [T(c, draw(_body) * draw(st.sampled_from((1, 1, 30)))) for c in calls]
            if broken:
                damage = draw(st.sampled_from(("none", "lost", "orphan", "twice", "late", "reused")))
                if damage == "lost":
                    results.pop()
                elif damage == "orphan":
                    results.append(T(f"x{n}"))
                elif damage == "twice":
                    results.append(T(calls[0], "again", id=f"again{n}"))
                elif damage == "late":
                    results.insert(0, U(draw(_body), f"late{n}"))
                elif damage == "reused":
                    out.append(results.pop(0))
                    out.append(A("again", f"re{n}", calls[0]))
                    out.append(T(calls[0], "second", id=f"second{n}"))
            out.extend(results)
    return out
