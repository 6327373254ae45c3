"""What stands in a session's journal: the kinds of records and how each is written as bytes.

A record is a JSON object on one line; records that carry a message have the message's own JSON behind a tab,
so that a session is replayed without reading its messages. `rep` marks a result that a real one may replace.
`SCHEMA` is the number of this format. It changes only when an older reader would misread a newer journal;
readers refuse larger numbers and pass over kinds they do not know.

| kind  | fields besides `at` (seconds since 1970)                                                        |
|-------|-------------------------------------------------------------------------------------------------|
| begin | schema, tenant, session: always the first record                                                |
| msg   | id, r (role), c (ids of its calls), a (ids of the calls it answers), q (queue id), rep; message |
| call  | id, s (start, approval or executing), safe, nonce (of the owner), expires (seconds from `at`)   |
| queue | id, expires; message                                                                            |
| drop  | id, why: a queued message that will not be delivered                                            |
| view  | items: what tier 0 consists of, ids of messages or messages                                     |
| set   | key, value: status, budgets, pressure and whatever the application keeps                        |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrm.context.messages import Message

__all__ = ["SCHEMA", "decode", "encode", "message_bytes", "message_of", "message_record"]

SCHEMA = 1

_loads = json.JSONDecoder().raw_decode  # json.loads spends as long on detecting encodings as on reading
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(kind: str, at: float, message: bytes | None = None, **fields: Any) -> bytes:
    """The payload of one record. Fields that are None are left out."""
    head = {"t": kind, "at": round(at, 3)}
    head.update((key, value) for key, value in fields.items() if value is not None)
    data = _dumps(head).encode("utf-8", "surrogatepass")
    return data if message is None else data + b"\t" + message


def message_bytes(message: Message) -> bytes:
    """The JSON of a message; it reads back equal (`message_of`)."""
    return _dumps(message.to_json()).encode("utf-8", "surrogatepass")


def message_of(text: str) -> Message:
    """The message of `message_bytes`, from the text that `decode` returned."""
    return Message.from_json(_loads(text)[0])


def message_record(message: Message, at: float, *, queue_id: str | None = None, replaceable: bool = False) -> bytes:
    """The payload that adds `message` to the conversation.

    `replaceable` is for a stand-in whose real result may come later.
    """
    calls: Sequence[str] = [call.id for call in message.calls]
    answers: Sequence[str] = [result.call_id for result in message.results]
    return encode(
        "msg",
        at,
        message_bytes(message),
        id=message.id,
        r=message.role,
        c=calls or None,
        a=answers or None,
        q=queue_id,
        rep=replaceable or None,
    )


def decode(payload: bytes) -> tuple[Mapping[str, Any], str | None]:
    """A record's fields, and the text of its message if it carries one."""
    text = payload.decode("utf-8", "surrogatepass")
    fields, end = _loads(text)
    return fields, text[end + 1 :] if len(text) > end else None
