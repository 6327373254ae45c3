"""Reads a GGUF file once: metadata and weights, straight from a memory map.

The usual loaders walk the file several times in pure Python (13 s for a 135M model); one pass takes about a
second. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3, little endian).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrm.models.errors import MissingDependency, ModelCorrupt, UnsupportedModel
from agentrm.models.quantisation import block_kind

if TYPE_CHECKING:
    import numpy
    import torch
    from numpy.typing import NDArray

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_REMEDY = "get the file again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: `offset` in bytes from the start of the data, `shape` outermost dimension
    first.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A parsed header. `data_start` is in bytes; the weights stay in the file until `tensor` reads one."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_start: int


class _Reader:
    """A cursor over the header. Reading past the end raises struct.error."""

    __slots__ = ("_buffer", "position")

    def __init__(self, buffer: mmap.mmap) -> None:
        self._buffer, self.position = buffer, 0

    def take(self, code: str) -> Any:
        (value,) = self.take_many(code, 1)
        return value

    def take_many(self, code: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        values = struct.unpack_from(layout, self._buffer, self.position)
        self.position += struct.calcsize(layout)
        return values

    def strings(self, count: int) -> list[str]:
        """A tight loop: a vocabulary and its merges are a hundred thousand strings."""
        buffer, at, length = self._buffer, self.position, _LENGTH.unpack_from
        out = []
        for _ in range(count):
            end = at + 8 + length(buffer, at)[0]
            out.append(buffer[at + 8 : end].decode("utf-8"))
            at = end
        self.position = at
        return out

    def string(self) -> str:
        return self.strings(1)[0]

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise struct.error(f"a value of unknown type {kind}")
        inner, count = self.take("I"), self.take("Q")
        if inner == _STRING:
            return self.strings(count)
        if inner in _SCALARS:
            return list(self.take_many(_SCALARS[inner], count))
        return [self.value(inner) for _ in range(count)]


def read_header(path: Path) -> GGUFFile:
    """Metadata and the table of tensors. Raises ModelCorrupt, UnsupportedModel (version), OSError."""
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelCorrupt(path, "no GGUF mark", "a GGUF file", _REMEDY)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            try:
                return _parse(path, _Reader(buffer))
            except (struct.error, UnicodeDecodeError) as error:
                raise ModelCorrupt(path, f"a broken header ({error})", "a GGUF file", _REMEDY) from error


def _parse(path: Path, reader: _Reader) -> GGUFFile:
    reader.take("I")  # the mark
    version = reader.take("I")
    if version != 3:
        raise UnsupportedModel("GGUF version", version, "3")
    tensor_count, value_count = reader.take("Q"), reader.take("Q")
    metadata = {reader.string(): reader.value(reader.take("I")) for _ in range(value_count)}
    tensors: dict[str, TensorInfo] = {}
    for _ in range(tensor_count):
        name = reader.string()
        shape = tuple(reversed(reader.take_many("Q", reader.take("I"))))
        tensors[name] = TensorInfo(name, shape, reader.take("I"), reader.take("Q"))
    alignment = metadata.get("general.alignment", 32)
    start = -(-reader.position // alignment) * alignment
    return GGUFFile(path, metadata, tensors, start)


def read_tensors(file: GGUFFile) -> Iterator[tuple[str, NDArray[numpy.float32]]]:
    """Name and float32 values of every tensor, in memory of their own, in the file's order.

    Raises ModelCorrupt (the file ends early), UnsupportedModel (a quantisation).
    """
    try:
        import numpy
    except ImportError as error:
        raise MissingDependency("numpy") from error
    raw = numpy.memmap(file.path, dtype=numpy.uint8, mode="r")
    for info in file.tensors.values():
        kind = block_kind(info.kind)
        start = file.data_start + info.offset
        end = start + math.prod(info.shape) // kind.weights * kind.size
        if end > raw.size:
            raise ModelCorrupt(file.path, f"{raw.size} bytes", f"at least {end} (tensor {info.name})", _REMEDY)
        yield info.name, kind.decode(raw[start:end].reshape(-1, kind.size)).reshape(info.shape)


def load_llama(file: GGUFFile, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """A transformers LlamaForCausalLM in evaluation mode, its weights those of the file.

    The logits equal those of `from_pretrained(gguf_file=...)` bit for bit on the CPU in float32. Raises
    UnsupportedModel for architectures other than llama and for scaled rotary embeddings.
    """
    import torch

    from agentrm.models.llama import build_empty, config_from_metadata, place_buffers

    config = config_from_metadata(file.metadata)
    names = _tensor_names(config.num_hidden_layers)
    unknown = sorted(set(file.tensors) - set(names) - {"output.weight"})
    if unknown:
        raise UnsupportedModel("tensor", unknown[0], "the tensors of a plain llama")
    missing = sorted(set(names) - set(file.tensors))
    if missing:
        raise ModelCorrupt(file.path, f"no tensor {missing[0]!r}", "the tensors of a llama", _REMEDY)
    heads = {
        "attn_q": config.num_attention_heads,
        "attn_k": config.num_key_value_heads or config.num_attention_heads,
    }
    state: dict[str, torch.Tensor] = {}
    for name, array in read_tensors(file):
        tensor = torch.from_numpy(array)
        part = name.split(".")[-2]
        if part in heads:
            tensor = _unpermute(tensor, heads[part])
        state[names.get(name, "lm_head.weight")] = tensor.to(device=device, dtype=dtype)
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model = build_empty(config)
    model.load_state_dict(state, strict=True, assign=True)
    return place_buffers(model, device)


def _tensor_names(layers: int) -> dict[str, str]:
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    for layer in range(layers):
        for theirs, ours in parts.items():
            names[f"blk.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
    return names


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes the reordering of rotary pairs (interleaved in the file, halves in transformers)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
