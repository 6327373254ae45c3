"""A model is found by name, by file or by directory; what is missing is named with the remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrm.models import LocalEngine, MissingDependency, UnknownModel, UnsupportedModel, tokenizer
from agentrm.models.tokenizer import CHATML

ASK = [{"role": "user", "content": "Grüß <|im_end|> dich"}]


@pytest.fixture(scope="module")
def folder(tiny: LocalEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a directory of the usual files; its vocabulary is that of the toy, byte by byte."""
    library: Any = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("model")
    vocabulary = {character: byte for character, byte in tokenizer._BYTE_OF.items()}
    backend = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    backend.add_special_tokens(list(tokenizer.toy().marks))
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}, "bos_token": None, "chat_template": CHATML})
    )
    weights: Any = tiny._loaded.weights
    weights.config.eos_token_id = weights.generation_config.eos_token_id = [256, 258]
    weights.save_pretrained(path)
    return path


def test_a_directory_gives_the_same_answers_as_what_was_saved_to_it(tiny: LocalEngine, folder: Path) -> None:
    model = LocalEngine.load(str(folder), device="cpu")
    assert model.context == tiny.context
    assert model.tokenizer.marks == tiny.tokenizer.marks
    assert model.tokenizer.end_ids == tiny.tokenizer.end_ids
    assert model.tokenizer.token_bytes == tiny.tokenizer.token_bytes
    assert model.tokenizer.encode_chat(ASK) == tiny.tokenizer.encode_chat(ASK)
    assert list(model.generate(ASK, max_new_tokens=20)) == list(tiny.generate(ASK, max_new_tokens=20))


def test_a_directory_without_a_model_is_not_one(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UnknownModel, match=r"config\.json"):
        LocalEngine.load(str(tmp_path), device="cpu")


def test_a_directory_with_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}, "added_tokens": []}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="Unigram"):
        tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_a_missing_library_is_named_with_the_extra_that_brings_it(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=r"pip install 'agentrm\[local\]'") as caught:
        LocalEngine.load("tiny-random", device="cpu")
    assert library in str(caught.value)
