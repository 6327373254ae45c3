"""The counter learns from usage, says how far it is off, and counts media."""

from __future__ import annotations

import base64
import struct

import pytest

from agentrm.context.messages import Message, Opaque, make
from agentrm.context.tokens import TokenCounter
from agentrm.context.usage import ContextMeter
from agentrm.errors import ConfigError


def test_the_models_own_tokenizer_is_used_when_given():
    counter = TokenCounter("m", encode=lambda text: text.split())
    assert counter.text("a b c d") == 4 and counter.error.exact


def test_a_factor_is_learned_per_kind_of_content():
    counter = TokenCounter("m")
    prose = [make("user", "some plain words in a row here now " * 60, id="p")]
    chinese = [make("user", "资源管理器负责管理全部资源" * 60, id="c")]
    before = counter.messages(prose), counter.messages(chinese)
    for _ in range(40):
        counter.learn(prose, (), round(before[0] * 1.02))
        counter.learn(chinese, (), round(before[1] * 0.6))
    assert counter.messages(chinese) == pytest.approx(before[1] * 0.6, rel=0.05)
    assert counter.messages(prose) == pytest.approx(before[0] * 1.02, rel=0.05)
    assert counter.error.observations == 80 and counter.error.error < 0.1


def test_nonsense_reports_cannot_switch_counting_off():
    counter = TokenCounter("m")
    messages = [make("user", "plain words " * 100, id="p")]
    honest = counter.messages(messages)
    for _ in range(50):
        counter.learn(messages, (), 1)
    assert counter.messages(messages) >= 0.25 * honest


def test_what_was_learned_survives_storage():
    counter = TokenCounter("m")
    messages = [make("user", "plain words " * 100, id="p")]
    counter.learn(messages, (), 300)
    back = TokenCounter.restore(counter.to_json())
    assert back.messages(messages) == counter.messages(messages)
    assert back.error == counter.error


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height) + b"\x08" * 40
    return "data:image/png;base64," + base64.b64encode(head + bytes(50_000)).decode()


@pytest.mark.parametrize(("size", "tokens"), [((512, 512), 255), ((1024, 1024), 765)])
def test_an_image_costs_its_tiles_not_its_base64(size, tokens):
    block = Opaque("image_url", {"type": "image_url", "image_url": {"url": png(*size)}})
    assert TokenCounter().message(Message("m", "user", (block,))) == tokens + 4


def test_a_low_detail_image_is_cheap():
    block = Opaque("image_url", {"type": "image_url", "image_url": {"url": "https://x", "detail": "low"}})
    assert TokenCounter().message(Message("m", "user", (block,))) == 85 + 4


def test_watermarks_are_checked():
    with pytest.raises(ConfigError, match="low"):
        ContextMeter(TokenCounter(), 1000, high=0.5, low=0.6)
