"""Cores of different kinds in one pool: each call goes to the one that suits it, and the pool says why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import agentrm
from agentrm.errors import ConfigError
from agentrm.models import Piece, ToolSpec, Usage
from agentrm.models.cores import CorePool, EngineCore, OpenAICore, Traits
from tests.models.test_engine import engine_with, text_of

ASK = [{"role": "user", "content": "Tell me a story"}]


class Scripted:
    """A core that answers with its name, one letter a piece."""

    def __init__(self, name: str, **traits: Any) -> None:
        self.name, self.traits = name, Traits(**({"capacity": 2} | traits))

    def load(self) -> None:
        return None

    def respond(self, messages: Any, tools: Sequence[ToolSpec] = (), **options: Any) -> Iterator[Piece]:
        for letter in self.name:
            yield Piece(letter)
        yield Piece("", usage=Usage(3, len(self.name), "stop"))


def test_calls_spread_by_load_as_they_start() -> None:
    pool = CorePool([Scripted("aa", capacity=1), Scripted("bb", capacity=2)])
    open_streams, went = [], []
    for _ in range(3):
        stream = pool.respond(ASK)
        next(stream)
        open_streams.append(stream)
        went.append(pool.choices[-1].core)
    assert sorted(went) == ["aa", "bb", "bb"]
    assert pool.load("aa") == pool.load("bb") == 1.0
    for stream in open_streams:
        text_of(stream)
    assert pool.load("aa") == pool.load("bb") == 0.0
    assert "least loaded" in pool.choices[0].why


def test_cost_and_quality_decide_where_asked_and_pass_a_full_core_by() -> None:
    cheap = Scripted("cheap", capacity=1, output_usd=1.0, quality=0.3)
    good = Scripted("good", capacity=1, output_usd=9.0, quality=0.9)
    pool = CorePool([good, cheap])
    assert pool.choose(prefer="cost").core == "cheap"
    assert pool.choose(prefer="quality").core == "good"
    assert pool.choose(prefer="cost", min_quality=0.5).core == "good"
    busy = pool.respond(ASK, prefer="cost")
    next(busy)
    choice = pool.choose(prefer="cost")
    assert choice.core == "good"
    assert "cheap is full" in choice.why
    text_of(busy)
    assert pool.choose(prefer="cost").core == "cheap"


def test_a_core_whose_context_is_too_small_is_never_chosen() -> None:
    pool = CorePool([Scripted("small", context=100), Scripted("large", capacity=1, context=1000)])
    assert pool.choose(input_tokens=200, output_tokens=50).core == "large"
    with pytest.raises(ConfigError, match="2000 tokens"):
        pool.choose(input_tokens=1900, output_tokens=100)


def test_an_engine_admits_by_itself_and_stands_beside_others() -> None:
    with engine_with(lanes=2) as engine:
        core = EngineCore(engine, quality=0.8)
        pool = CorePool([core, Scripted("other", quality=0.1)])
        stream = pool.respond(ASK, prefer="quality", max_new_tokens=8)
        assert text_of(stream) == text_of(engine.generate(ASK, max_new_tokens=8))
        assert core.load() == (0, 0)
        assert "tiny-random" not in pool.manager.pools


def test_an_endpoint_is_a_core_through_the_users_own_client() -> None:
    openai = pytest.importorskip("openai")
    provider = pytest.importorskip("agentrm.simulation.provider")
    with provider.StubProvider() as stub:
        client = openai.OpenAI(base_url=stub.base_url, api_key="none", max_retries=0)
        rm = agentrm.ResourceManager(pools={"cloud": {"lanes": 2}})
        pool = CorePool([OpenAICore(client, "stub", Traits(2), name="cloud")], manager=rm)
        pieces = list(pool.respond(ASK, max_new_tokens=20))
        usage = pieces[-1].usage
        assert text_of(pieces)
        assert usage is not None and usage.input_tokens > 0 and usage.output_tokens > 0
        state = rm.statistics().pools["cloud"]
        assert (state.settled, state.in_use) == (1, 0)
        assert rm.pools["cloud"].shares["default"].tokens == usage.input_tokens + usage.output_tokens
        stopped = list(pool.respond(ASK, cancelled=lambda: True))
        assert stopped[-1].usage is not None and stopped[-1].usage.finish_reason == "cancelled"
        assert rm.statistics().pools["cloud"].in_use == 0


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"capacity": 1, "quality": 2.0}, {"capacity": 1, "input_usd": -1.0}])
def test_traits_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Traits(**wrong)


def test_a_pool_of_cores_needs_names_of_their_own_and_pools_of_the_manager() -> None:
    with pytest.raises(ConfigError, match="same name"):
        CorePool([Scripted("a"), Scripted("a")])
    with pytest.raises(ConfigError, match="same name"):
        CorePool([])
    with pytest.raises(ConfigError, match="manager's pools"):
        CorePool([Scripted("a")], manager=agentrm.ResourceManager())


def test_a_framework_s_own_client_is_a_core() -> None:
    pytest.importorskip("langchain_core")
    from agentrm_langchain.chat_local import ChatLocal
    from agentrm_langchain.core import LangChainCore

    sure = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
    weather = ToolSpec("weather", "", sure)
    chat = ChatLocal(model="tiny-random", device="cpu")
    pool = CorePool([LangChainCore(chat, Traits(1), name="chat")])
    pieces = list(pool.respond(ASK, max_new_tokens=8))
    assert text_of(pieces) == text_of(chat.local_engine().generate(ASK, max_new_tokens=8))
    assert pieces[-1].usage is not None and pieces[-1].usage.output_tokens == 8
    call = list(pool.respond(ASK, [weather], tool_choice="any"))
    assert call[0].tool == "weather"
    assert text_of(call) in ('{"sure": true}', '{"sure": false}')
