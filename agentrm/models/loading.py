"""Finds a model by name or path and brings its weights and tokenizer to a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrm.errors import ConfigError
from agentrm.models import catalog, gguf, tokenizer
from agentrm.models.errors import DeviceUnavailable, MissingDependency, ModelCorrupt, UnknownModel
from agentrm.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")
_TINY_SEED = 0


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights in evaluation mode and what belongs to them. Nothing of it changes after loading."""

    name: str
    weights: torch.nn.Module
    tokenizer: Tokenizer
    context: int
    device: torch.device
    dtype: torch.dtype


def load_model(name: str, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Loads a catalogued model, a .gguf file or a model directory.

    Raises UnknownModel, ModelNotInstalled, ModelCorrupt, UnsupportedModel, MissingDependency.
    """
    if name == catalog.TINY_RANDOM:
        from agentrm.models.llama import build_random

        toy = tokenizer.toy()
        weights = build_random(len(toy), catalog.TINY_CONTEXT, _TINY_SEED, device, dtype)
        return LoadedModel(name, weights, toy, catalog.TINY_CONTEXT, device, dtype)
    path = Path(name).expanduser()
    if path.is_dir():
        return _from_directory(path, device, dtype)
    if not path.is_file():
        path = catalog.locate(catalog.lookup(name))
    file = gguf.read_header(path)
    # The tokenizer first: it finds out in no time what cannot be used.
    words = tokenizer.from_gguf(file.metadata)
    weights = gguf.load_llama(file, device, dtype)
    return LoadedModel(name, weights, words, file.metadata["llama.context_length"], device, dtype)


def _from_directory(folder: Path, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    if not (folder / "config.json").is_file() or not (folder / "tokenizer.json").is_file():
        raise UnknownModel(str(folder), catalog.names())
    words = tokenizer.from_directory(folder)
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise MissingDependency("transformers") from error
    try:
        weights: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, local_files_only=True)
    except OSError as error:
        found = str(error).splitlines()[0]
        raise ModelCorrupt(folder, f"no usable weights ({found})", "*.safetensors", "get the files again") from error
    context = int(weights.config.max_position_embeddings)
    return LoadedModel(str(folder), weights.to(device).eval(), words, context, device, dtype)


def resolve_device(asked: str) -> torch.device:
    """The device of that name; `auto` is the first GPU, else the CPU. Raises ConfigError,
    DeviceUnavailable.
    """
    import_torch()
    import torch

    available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if asked == "auto":
        return torch.device("cuda:0" if "cuda:0" in available else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise ConfigError("device", asked, "auto, cpu, cuda or cuda:<number>") from None
    if asked == "cuda":
        device = torch.device("cuda:0")
    if str(device) not in available:
        raise DeviceUnavailable(asked, available)
    return device


def resolve_dtype(asked: str | None, device: torch.device) -> torch.dtype:
    """The type of the weights: by default float32 on a CPU and bfloat16 on a GPU that computes in it."""
    import torch

    if asked is None:
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if asked not in DTYPES:
        raise ConfigError("dtype", asked, ", ".join(DTYPES))
    dtype: torch.dtype = getattr(torch, asked)
    return dtype


def import_torch() -> None:
    """Imports what runs models (several seconds the first time). Raises MissingDependency, which says
    what to do.
    """
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingDependency(error.name or "torch") from error
    del torch
