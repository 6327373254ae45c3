"""Bug reports about token counting, each as a small offline case."""

from __future__ import annotations

import base64
import hashlib
import json
import random

import pytest

from agentrm.context.messages import Message, Text, ToolCall, ToolResult
from agentrm.context.tokens import TokenCounter
from agentrm.context.usage import ESTIMATED, REPORTED, ContextMeter, FixedPartWarning
from agentrm.limits.cost import Prices, cost_of
from tests.context.histories import S, U, turns

_NOISE = random.Random(7).randbytes(3000)

# (text, lowest and highest count over common vocabularies: cl100k, o200k, Llama 3, Qwen). Where tokenizers disagree the
# estimate has to suit both ends. Counts follow from the vocabularies' documented rates per script: characters x rate.
FIXTURE = {
    "english": ("The manager frees a lane when the call ends, and the next waiting agent is woken. " * 40, 640, 760),
    "korean": ("자원관리자는에이전트가사용하는모든자원을관리합니다" * 40, 620, 1250),
    "japanese": ("資源管理者はエージェントが使う資源をすべて管理します。" * 40, 700, 1150),
    "chinese": ("资源管理器负责管理智能体使用的全部资源并且防止相互阻塞" * 40, 690, 1250),
    "russian": ("Менеджер ресурсов освобождает дорожку после завершения вызова. " * 40, 560, 1080),
    "emoji": ("😀🎉🚀🔥💡🧠🐍🦊" * 50, 410, 1000),
    "base64": (base64.b64encode(_NOISE).decode(), 2600, 3350),
    "minified json": (json.dumps([{"id": n, "name": f"item{n}", "ok": True} for n in range(200)], separators=(",", ":")),
                      2700, 3500),
    "indented code": ("    if value in self.items:\n        return self.items[value].name\n" * 50, 700, 1000),
    "digit lines": ("1\n" * 30_000, 60_000, 60_000),
    "hashes": ("\n".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(60)), 2000, 2700),
    "mixed": ("Fehler E1002 in /srv/app/z.py: 값이 없습니다 (retry=3) ✅ sha 9fceb02d0ae598e9\n" * 40, 1250, 1750),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXTURE)
def test_r144_no_script_is_undercounted(name):
    text, low, high = FIXTURE[name]
    estimate = TokenCounter().text(text)
    assert estimate >= 0.85 * high
    assert estimate <= 2.5 * low


def test_r145_call_names_arguments_and_ids_are_counted():
    counter = TokenCounter()
    arguments = json.dumps({"content": "some ordinary words to write into a file " * 98})
    assert len(arguments) >= 4000
    call = Message("a", "assistant", (ToolCall("call_1", "write_file", arguments),), form="none")
    assert counter.message(call) >= 900
    short = Message("t", "tool", (ToolResult("c", "ok"),))
    long = Message("t", "tool", (ToolResult("call_00_1Hq7azBpqEsapKn8ByunTVzD", "ok"),))
    assert counter.message(long) >= counter.message(short) + 8


def sized(tokens: int, role: str = "user") -> Message:
    counter = TokenCounter()
    text = "word " * tokens
    while counter.message(Message("x", role, (Text(text),))) > tokens:
        text = text[: -5 * max(1, (counter.message(Message("x", role, (Text(text),))) - tokens))]
    return Message(f"{role}{tokens}", role, (Text(text),))


def test_r146_the_threshold_looks_at_the_full_request():
    counter = TokenCounter()
    schemas = [{"name": f"tool{n}", "description": "word " * 280} for n in range(30)]
    assert 8_500 <= sum(counter.schema(s) for s in schemas) <= 9_500
    meter = ContextMeter(counter, 20_000, high=0.8, tools=schemas)
    history = [sized(6_000, "system"), sized(4_000)]
    assert counter.messages(history) < meter.high_tokens
    assert meter.is_due(history)


def test_r146_a_fixed_part_above_the_threshold_warns_once_and_does_not_loop():
    meter = ContextMeter(TokenCounter(), 20_000, high=0.8, tools=["word " * 11_000])
    history = [sized(6_000, "system")]
    with pytest.warns(FixedPartWarning, match="16000"):
        assert meter.is_due(history) is False
    assert meter.is_due(history) is False


def test_r148_the_last_report_counts_not_the_sum():
    meter = ContextMeter(TokenCounter(), 250_000, high=0.8)
    history = [U("go", "u")]
    for prompt in (50_000, 60_000, 62_000, 63_000, 64_000, 65_000):
        meter.report(history, prompt_tokens=prompt)
        history = [*history, *turns(1, start=prompt)]
    size = meter.size(history)
    assert 65_000 <= size.tokens <= 65_300 and size.source == REPORTED
    assert not meter.is_due(history)


def test_r151_cached_tokens_are_charged_once():
    prices = Prices(input=1.25, cached=0.625, output=10)
    cost = cost_of(prices, prompt=262_960, cached=257_955, output=1_744)
    assert cost.amount == pytest.approx(0.1849, abs=5e-5) and cost.suspect is None
    apart = cost_of(prices, prompt=5_005, cached=257_955, output=1_744, prompt_includes_cached=False)
    assert apart.amount == pytest.approx(cost.amount)


def test_r151_a_report_that_cannot_be_true_is_clamped_and_marked():
    cost = cost_of(Prices(input=1.0, cached=0.1, output=1.0), prompt=10, cached=20, output=0)
    assert cost.amount == pytest.approx(20 * 0.1 / 1e6) and "20" in cost.suspect


def test_r153_zero_usage_falls_back_to_an_estimate():
    meter = ContextMeter(TokenCounter(), 100_000, high=0.9, low=0.5)
    history: list[Message] = []
    triggered = None
    for turn in range(1, 21):
        message = sized(5_000)
        history.append(Message(f"m{turn}", "user", message.parts))
        meter.report(history, prompt_tokens=0, output_tokens=0)
        if triggered is None and meter.is_due(history):
            triggered = turn
    assert triggered is not None and 16 <= triggered <= 20
    assert meter.size(history).source == ESTIMATED
    assert meter.estimated_spend > 0 and meter.reported_spend == 0


def test_r155_hidden_reasoning_is_not_sent_again():
    meter = ContextMeter(TokenCounter(), 100_000, high=0.95, low=0.5)
    sent = [S("s"), U("go", "u")]
    meter.report(sent, prompt_tokens=92_000, output_tokens=13_000, reasoning_tokens=12_000)
    reply = Message("a", "assistant", (Text("the visible answer"),))
    assert 92_900 <= meter.size([*sent, reply]).tokens <= 93_100
    assert not meter.is_due([*sent, reply])
