"""Makes an empty transformers Llama: from the metadata of a file, or tiny and random for tests of
mechanics.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from agentrm.models.errors import MissingDependency, UnsupportedModel

if TYPE_CHECKING:
    import torch
    from transformers import LlamaConfig

_ROPE_KEYS = ("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear")


def _transformers() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)  # torch's own, about its own renames
            import torch  # noqa: F401  # without it transformers would offer only placeholders
            import transformers
    except ImportError as error:
        raise MissingDependency(error.name or "torch") from error
    return transformers


def config_from_metadata(metadata: dict[str, Any]) -> LlamaConfig:
    """The model's shape from GGUF metadata. Raises UnsupportedModel for anything but a plain llama."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModel("architecture", architecture, "llama")

    def value(key: str) -> Any:
        try:
            return metadata[f"llama.{key}"]
        except KeyError:
            raise UnsupportedModel("a llama without metadata key", f"llama.{key}", "complete files") from None

    for key in _ROPE_KEYS:
        if metadata.get(f"llama.{key}") not in (None, "none", 1.0):
            raise UnsupportedModel("rotary scaling", metadata[f"llama.{key}"], "none")
    heads, width = value("attention.head_count"), value("embedding_length")
    config: LlamaConfig = _transformers().LlamaConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=width,
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=metadata.get("llama.rope.dimension_count", width // heads),
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": metadata.get("llama.rope.freq_base", 10000.0)},
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=metadata.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=None,  # a padding id would zero that embedding's row
        tie_word_embeddings=False,  # a tied head is the same tensor under both names
    )
    return config


def build_empty(config: LlamaConfig) -> torch.nn.Module:
    """A model without memory for its weights: they are assigned, not copied."""
    transformers = _transformers()
    import torch

    with torch.device("meta"):
        model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model.eval()


def place_buffers(model: Any, device: torch.device) -> torch.nn.Module:
    """Recomputes what is not in any file (the rotary frequencies) on the device of the weights."""
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config).to(device)
    placed: torch.nn.Module = model
    return placed


def build_random(vocabulary: int, context: int, seed: int, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """About 0.14 million random weights, the same ones for the same seed; the global generator is left
    alone.
    """
    transformers = _transformers()
    import torch

    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=False,
    )
    model = build_empty(config)
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: (
            torch.ones(shape.shape)
            if name.endswith("norm.weight")
            else torch.randn(shape.shape, generator=generator) * 0.2
        ).to(device=device, dtype=dtype)
        for name, shape in model.state_dict().items()
    }
    model.load_state_dict(state, strict=True, assign=True)
    return place_buffers(model, device)
