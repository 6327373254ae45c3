"""Summarisers by name; a local model as one, with what a small model does wrong. Broken plugins break no others."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from agentrm import ConfigError, ResourceManager, extensions
from agentrm.context.compact import Compactor
from agentrm.context.embed import EmbedderError, HashingEmbedder, load_embedder
from agentrm.context.messages import Message, make
from agentrm.context.pairs import find_breaks
from agentrm.context.summarize import Written
from agentrm.context.summarizers import load_summarizer
from agentrm.context.tokens import TokenCounter
from agentrm.storage.registry import open_store

COUNTER = TokenCounter()


def history() -> list[Message]:
    talk = [make("assistant", f"We talked about the garden and the weather of day {day}. " * 4) for day in range(12)]
    return [make("user", "The order number is ORD-7731-X."), *talk, make("user", "Go on.")]


def compacted(writer: Any) -> Any:
    result = Compactor(COUNTER, embedder=None, summarizer=writer).compact(history(), 320)
    assert not find_breaks(result.messages) and result.after <= 320
    assert "ORD-7731-X" in "\n".join(message.text for message in result.messages)
    return result


@pytest.fixture
def torch() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch").set_num_threads(1)


def test_nonsense_of_a_local_model_is_thrown_away_and_said(torch: None) -> None:
    rm = ResourceManager(pools={"default": {"lanes": 1}, "notes": {"lanes": 1}})
    seen: list[Any] = []
    rm.subscribe(seen.append)
    writer = load_summarizer("local", COUNTER, model="tiny-random", device="cpu", manager=rm, pool="notes",
                             max_output_tokens=32)  # fmt: skip
    result = compacted(writer)
    assert result.degraded is not None and "summariser" in result.degraded
    assert result.model_calls == rm.statistics().pools["notes"].settled > 0
    assert rm.statistics().pools["default"].granted == 0
    assert {event.priority for event in seen if getattr(event, "priority", None)} <= {"background"}


def test_a_local_model_that_is_gone_costs_its_words_alone(torch: None) -> None:
    from agentrm.models import LocalEngine

    writer = load_summarizer("local", COUNTER, model="tiny-random", device="cpu", max_output_tokens=32)
    LocalEngine.shared("tiny-random", device="cpu").close()
    result = compacted(writer)
    assert result.degraded is not None and "summariser failed: EngineClosed" in result.degraded


def test_the_real_small_model_writes_notes(torch: None) -> None:
    from agentrm.models import catalog

    if catalog.installed_file(catalog.lookup("smollm2-135m")) is None:
        pytest.skip("its weights are not installed: agentrm models fetch smollm2-135m")
    result = compacted(load_summarizer("local", COUNTER, device="cpu", max_output_tokens=48))
    assert result.model_calls >= 1 and result.cost_tokens > 0


class Fixed:
    def __init__(self, counter: TokenCounter) -> None:
        pass

    def summarize(self, groups: Any, previous: str, tokens: int) -> Written:
        return Written("They talked about the garden.", 10, 5, 1)


class Nothing:
    def __init__(self, *options: Any) -> None:
        pass


def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __name__
    points = [
        EntryPoint(name, value, group)
        for group, working in (
            ("agentrm.summarizers", f"{here}:Fixed"),
            ("agentrm.stores", "agentrm.storage.registry:memory"),
            ("agentrm.embedders", "agentrm.context.embed:HashingEmbedder"),
        )
        for name, value in (("broken", "no_such_module_of_a_plugin:x"), ("works", working), ("nothing", f"{here}:Nothing"))
    ]
    monkeypatch.setattr(extensions, "entry_points", lambda group: EntryPoints(points).select(group=group))


def test_a_broken_plugin_is_named_and_breaks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch)
    for choose in (lambda: Compactor(COUNTER, summarizer="broken"), lambda: open_store("broken:x")):
        with pytest.raises(ConfigError, match="no_such_module_of_a_plugin"):
            choose()
    with pytest.raises(EmbedderError, match="no_such_module_of_a_plugin"):
        load_embedder("broken")
    assert "garden" in "\n".join(m.text for m in compacted("works").messages)
    assert isinstance(load_embedder("works"), HashingEmbedder)
    open_store("works:").close()


def test_names_that_nobody_has_are_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch)
    for choose in (lambda: Compactor(COUNTER, summarizer="workz"), lambda: open_store("workz:x")):
        with pytest.raises(ConfigError, match="broken, nothing, works"):
            choose()
    with pytest.raises(EmbedderError, match="works"):
        load_embedder("workz")
    with pytest.raises(ConfigError, match="summarize"):
        Compactor(COUNTER, summarizer="nothing")


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("agentrm.summarizers", {"local"}),
        ("agentrm.stores", {"sqlite", "memory"}),
        ("agentrm.embedders", {"onnx-minilm", "hf-minilm", "hashing"}),
    ],
)
def test_the_built_in_ones_are_entry_points_like_any_other(group: str, names: set[str]) -> None:
    from importlib.metadata import entry_points

    assert names <= entry_points(group=group).names
    for name in names:
        assert callable(extensions.load_extension(group, name, "x"))
