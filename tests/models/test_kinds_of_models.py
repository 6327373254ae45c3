"""Which models the engine runs: with sliding windows as transformers runs them, and what it can't run it says at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrm.models import LocalEngine, ModelCorrupt, UnsupportedModel
from agentrm.models.loading import LoadedModel
from agentrm.models.tokenizer import toy
from tests.models.test_engine import BLOCK, SEED, prompts, text_of, together

SIZES = {
    "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip


def random_model(kind: str, **config: Any) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = "Text" if kind == "Gemma3" else ""
    made = getattr(transformers, f"{kind}{text}Config")(**(SIZES | config))
    model = getattr(transformers, f"{kind}ForCausalLM")(made).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3)
    return model


def engine_of(model: Any, **options: Any) -> LocalEngine:
    torch = pytest.importorskip("torch")
    return LocalEngine([LoadedModel("random", model, toy(), 1024, torch.device("cpu"), torch.float32)], **options)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Mistral", {"sliding_window": 40}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2}),
        ("Gemma3", {"sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    ],
)
def test_a_sliding_window_sees_what_it_sees_in_transformers(kind: str, config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    models = [random_model(kind, **config) for _ in range(2)]
    models[1].set_attn_implementation("eager")
    asked = [text + "x" * 60 for text in prompts(6, SEED)]

    def by_hand(text: str) -> str:
        tokens = toy().encode(text)
        with torch.inference_mode():
            for _ in range(12):
                tokens.append(int(models[1](torch.tensor([tokens])).logits[0, -1].argmax()))
        written = tokens[len(toy().encode(text)) :]
        end = next((i for i, token in enumerate(written) if token in toy().end_ids), len(written))
        return toy().decode(written[:end])

    expected = [by_hand(text) for text in asked]
    assert len(set(expected)) > 3
    with engine_of(models[0], lanes=4, slice_tokens=3) as engine:
        memory = 16 * BLOCK * engine.statistics()[0].block_bytes // BLOCK
    with engine_of(models[0], lanes=4, slice_tokens=3, memory=memory) as engine:
        assert together([engine.generate(text, max_new_tokens=12) for text in asked]) == expected
        assert engine.statistics()[0].switches > 0
        text_of(engine.generate(asked[0], max_new_tokens=2))


@pytest.mark.parametrize(
    ("kind", "config", "named"),
    [
        ("Gemma2", {"attn_logit_softcapping": 50.0}, "softcap"),
        ("GptOss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "s_aux"),
        ("Mamba", {"state_size": 4}, "Mamba"),
    ],
)
def test_a_model_that_can_not_run_in_blocks_is_refused_when_the_engine_is_made(
    kind: str, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        engine_of(random_model(kind, **config))


def test_a_directory_without_weights_says_what_is_missing(tmp_path: Path, tiny: LocalEngine) -> None:
    weights: Any = tiny._loaded.weights
    weights.config.save_pretrained(tmp_path)
    library: Any = pytest.importorskip("tokenizers")
    backend = library.Tokenizer(library.models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = library.decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelCorrupt, match="safetensors"):
        LocalEngine.load(str(tmp_path), device="cpu")
