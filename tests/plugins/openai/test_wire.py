"""What is read off requests and answers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from agentrm.adapters import Usage
from agentrm_openai.wire import Frames, answer_size, answer_usage, read_request
from tests.plugins.openai.stub_http import httpx


def post(body: Any, **more: Any) -> httpx.Request:
    return httpx.Request("POST", "http://x/v1/chat/completions", json=body, **more)


def test_a_request_says_its_model_its_size_and_its_bound() -> None:
    asked = read_request(post({"model": "m", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 9}))
    assert asked is not None
    assert (asked.model, asked.max_output_tokens, asked.streams) == ("m", 9, False)
    assert 100 <= asked.input_tokens <= 110


def test_an_image_does_not_count_by_the_length_of_its_encoding() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    asked = read_request(post({"model": "m", "messages": [{"role": "user", "content": [image]}]}))
    assert asked is not None and asked.input_tokens < 2_000


@pytest.mark.parametrize(
    "request_",
    [
        httpx.Request("GET", "http://x/v1/models"),
        httpx.Request("POST", "http://x", content=b"{", headers={"content-type": "application/json"}),
        httpx.Request("POST", "http://x", files={"file": b"model"}, data={"model": "m"}),
        httpx.Request("POST", "http://x", content=iter([b"{}"]), headers={"content-type": "application/json"}),
        post(["model"]),
        post({"model": ""}),
        post({"messages": []}),
    ],
    ids=["get", "broken", "form", "made while sent", "list", "empty", "no model"],
)  # fmt: skip
def test_what_is_no_request_to_a_model_is_none(request_: httpx.Request) -> None:
    assert read_request(request_) is None


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}, Usage(3, 4)),
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 4}}}, Usage(3, 4)),
        ({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}, Usage(3, 1)),
        ({"type": "message_delta", "usage": {"output_tokens": 4}}, Usage(0, 4)),
        ({"choices": []}, None),
        (None, None),
    ],
)
def test_the_reports_of_all_dialects_are_read(answer: Any, usage: Usage | None) -> None:
    assert answer_usage(answer) == usage


def test_text_is_counted_once() -> None:
    said = [
        {"type": "response.output_text.delta", "delta": "four and "},
        {"type": "response.output_text.delta", "delta": "a half"},
        {"type": "response.output_text.done", "text": "four and a half"},
        {"type": "response.completed", "response": {"output": ["four and a half"]}},
    ]
    assert sum(map(answer_size, said)) == sum(map(answer_size, said[:2])) > 0
    assert answer_size({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "four and"}}) > 0


def test_events_are_read_however_the_bytes_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    events = [{"n": n, "text": "é" * dice.randrange(50)} for n in range(50)]
    lines = [f"data: {json.dumps(e, ensure_ascii=False)}{dice.choice(('', chr(13)))}\n\n" for e in events]
    data = (": a comment\n\n" + "".join(lines) + "data: [DONE]\n\n").encode()
    frames, read, at = Frames(), [], 0
    while at < len(data):
        size = dice.randrange(1, 60)
        read += list(frames.add(data[at : at + size]))
        at += size
    assert read == events


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b'data: {"type": "response.completed"}\n\n', b'data:{"type":"message_stop"}\n'])
def test_the_last_event_is_known(last: bytes) -> None:
    frames = Frames()
    list(frames.add(b'data: {"type": "delta"}\n\n'))
    assert not frames.ended
    list(frames.add(last))
    assert frames.ended


@pytest.mark.parametrize("choices", [None, {}, "x", 3, [None], ["x"], [{}], [{"delta": None}]])
def test_choices_of_any_shape_break_no_stream(choices: Any) -> None:
    assert answer_size({"choices": choices}) == 0
    assert answer_usage({"choices": choices}) is None


def test_an_event_of_many_pieces_is_read_once_it_is_whole() -> None:
    frames, text = Frames(), "x" * 500_000
    data = f"data: {json.dumps({'text': text})}".encode()
    assert not [event for at in range(0, len(data), 100) for event in frames.add(data[at : at + 100])]
    assert list(frames.add(b"\n\n")) == [{"text": text}]
