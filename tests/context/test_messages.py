"""Neutral messages and their converters lose nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrm.context.convert_openai import from_openai, to_openai
from agentrm.context.messages import (
    Message,
    MessageError,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    make,
)

WIRE = [
    {"role": "system", "content": "Rules."},
    {"role": "developer", "content": "More rules."},
    {"role": "user", "content": "hello", "name": "bob", "custom": {"a": 1}},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, "index": 0},
            {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "raw"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "r", "name": "f"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "r"}]},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "y"}],
        "thinking_blocks": [{"type": "thinking", "thinking": "z", "signature": "q"}],
    },
    {"role": "assistant", "content": "", "tool_calls": []},
    {"role": "assistant", "tool_calls": [{"id": "c3", "name": "flat", "arguments": "{}"}], "ts": 1.5},
    {"role": "tool", "tool_call_id": "c3", "content": None},
    {"role": "assistant", "function_call": {"name": "old", "arguments": "{}"}},
    {"role": "function", "name": "old", "content": "done"},
]


def test_chat_dictionaries_come_back_equal():
    assert to_openai(from_openai(WIRE)) == WIRE


def test_chat_dictionaries_survive_storage_in_between():
    stored = json.dumps([m.to_json() for m in from_openai(WIRE)])
    assert to_openai([Message.from_json(m) for m in json.loads(stored)]) == WIRE


def test_ids_do_not_depend_on_what_comes_later():
    short, longer = from_openai(WIRE[:5]), from_openai(WIRE)
    assert [m.id for m in short] == [m.id for m in longer[:5]]
    assert len({m.id for m in longer}) == len(longer)


def test_signed_reasoning_is_seen_as_signed():
    blocks = [r for m in from_openai(WIRE) for r in m.reasoning]
    assert [(r.text, r.signed) for r in blocks] == [("hm", False), ("z", False), ("t", True)] or [
        (r.text, r.signature) for r in blocks
    ] == [("hm", None), ("z", "q"), ("t", "s")]


def test_an_unknown_role_is_named_in_the_error():
    with pytest.raises(MessageError, match="robot"):
        from_openai([{"role": "robot", "content": ""}])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
extras = st.dictionaries(st.text(max_size=6), json_values, max_size=3)
texts = st.builds(Text, st.text(max_size=20), extras)
opaque = st.builds(Opaque, st.text(max_size=6), extras)
parts = st.one_of(
    texts,
    opaque,
    st.builds(Reasoning, st.none() | st.text(max_size=9), st.none() | st.text(max_size=9), extras),
    st.builds(ToolCall, st.text(max_size=5), st.text(max_size=5), st.text(max_size=9) | extras, extras),
    st.builds(
        ToolResult,
        st.text(max_size=5),
        st.text(max_size=9) | st.lists(texts | opaque, max_size=2).map(tuple),
        st.booleans(),
        st.none() | st.text(max_size=5),
        extras,
    ),
)
messages = st.builds(
    Message,
    st.text(min_size=1, max_size=8),
    st.sampled_from(("system", "user", "assistant", "tool")),
    st.lists(parts, max_size=4).map(tuple),
    st.none() | st.text(max_size=6),
    st.none() | st.floats(0, 1e10),
    st.frozensets(st.text(max_size=6), max_size=3),
    extras,
    st.sampled_from(("", "none", "text", "parts")),
)


@given(messages)
def test_every_message_survives_json(message):
    assert Message.from_json(json.loads(json.dumps(message.to_json()))) == message


def test_bytes_survive_and_other_objects_are_named():
    message = Message("m", "tool", (), extra={"blob": b"\x00\xff", "artifact": object()})
    back = Message.from_json(json.loads(json.dumps(message.to_json())))
    assert back.extra["blob"] == b"\x00\xff"
    assert back.extra["artifact"] == {"$lost": "builtins.object"}


def test_langchain_messages_come_back_equal():
    lc = pytest.importorskip("langchain_core.messages")
    from agentrm.context.convert_langchain import from_langchain, to_langchain

    given_messages = [
        lc.SystemMessage("s"),
        lc.HumanMessage(
            [{"type": "text", "text": "a"}, {"type": "image", "url": "x"}, "bare"], name="bob", id="1"
        ),
        lc.AIMessage(
            [
                {"type": "thinking", "thinking": "q", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
            ],
            tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c1"}],
            invalid_tool_calls=[{"name": "f", "args": "{bad", "id": "c2", "error": "e"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            response_metadata={"m": 1},
        ),
        lc.ToolMessage("r", tool_call_id="c1", artifact={"x": 1}, status="error", name="f"),
        lc.ToolMessage("r", tool_call_id="c2"),
        lc.ChatMessage("x", role="critic"),
        lc.AIMessage("k", additional_kwargs={"foo": 1}, id="i9"),
    ]
    neutral = from_langchain(given_messages)
    assert to_langchain(neutral) == given_messages
    stored = [Message.from_json(json.loads(json.dumps(m.to_json()))) for m in neutral]
    assert to_langchain(stored) == given_messages


def test_a_conversation_can_change_frameworks():
    pytest.importorskip("langchain_core.messages")
    from agentrm.context.convert_langchain import from_langchain, to_langchain

    wire = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ]
    there = to_langchain(from_openai(wire))
    assert there[1].tool_calls == [{"name": "f", "args": {"a": 1}, "id": "c1", "type": "tool_call"}]
    back = to_openai(from_langchain(there))
    assert back[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert back[2] == wire[2]


def test_autogen_messages_come_back_equal():
    core, models = pytest.importorskip("autogen_core"), pytest.importorskip("autogen_core.models")
    from PIL import Image as Pillow

    from agentrm.context.convert_autogen import from_autogen, to_autogen

    result = models.FunctionExecutionResult
    call = core.FunctionCall("c1", '{"a": 1}', "f")
    picture = core.Image.from_pil(Pillow.new("RGB", (3, 2), (9, 8, 7)))
    given_messages = [
        models.SystemMessage(content="Rules."),
        models.UserMessage(content="hello", source="bob"),
        models.UserMessage(content=["look", picture], source="user"),
        models.AssistantMessage(content=[call, core.FunctionCall("c2", "{bad", "g")], thought="hm", source="worker"),
        models.FunctionExecutionResultMessage(
            content=[
                result(content="r", name="f", call_id="c1"),
                result(content="x", name="g", call_id="c2", is_error=True),
            ]
        ),
        models.FunctionExecutionResultMessage(content=[result(content="", name="f", call_id="", is_error=False)]),
        models.AssistantMessage(content="", thought="", source="worker"),
        models.AssistantMessage(content=[], source="worker"),
        models.UserMessage(content="hello", source="bob"),
        models.UserMessage(content=[], source="bob"),
    ]
    said = [m.model_dump_json() for m in given_messages]
    neutral = from_autogen(given_messages)
    assert len({m.id for m in neutral}) == len(neutral)
    assert [m.model_dump_json() for m in to_autogen(neutral)] == said
    stored = [Message.from_json(json.loads(json.dumps(m.to_json()))) for m in neutral]
    assert [m.model_dump_json() for m in to_autogen(stored)] == said
    halves = (seen := {}, from_autogen(given_messages[:5], seen) + from_autogen(given_messages[5:], seen))
    assert halves[1] == neutral, "a list may be read piece by piece"


def test_a_conversation_can_move_to_autogen_and_what_has_no_place_there_is_named():
    pytest.importorskip("autogen_core.models")
    from agentrm.context.convert_autogen import from_autogen, to_autogen

    there = to_autogen(from_openai(WIRE[5:7]))
    assert len(there) == 1, "results that stand side by side are one message there"
    assert [r.call_id for r in there[0].content] == ["c1", "c2"]
    wire = [m for m in WIRE if not isinstance(m.get("content"), list)]
    back = from_autogen(to_autogen(from_openai(wire)))
    assert [c.name for m in back for c in m.calls] == ["f", "g", "flat", "old"]
    assert [r.call_id for m in back for r in m.results][:2] == ["c1", "c3"]
    with pytest.raises(MessageError, match="input_audio"):
        to_autogen([Message("m", "user", (Opaque("input_audio", {}),))])
    with pytest.raises(MessageError, match="dict"):
        from_autogen([{}])


def test_flags_travel_through_langchain():
    pytest.importorskip("langchain_core.messages")
    from agentrm.context.convert_langchain import from_langchain, to_langchain

    pinned = make("user", "always", flags=("pinned",))
    assert from_langchain(to_langchain([pinned]))[0].pinned
