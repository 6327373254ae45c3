"""A GGUF file is read once, exactly, and a broken one is named as such."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from agentrm.models import LocalEngine, ModelCorrupt, UnsupportedModel, catalog
from agentrm.models.gguf import read_header, read_tensors
from agentrm.models.quantisation import block_kind

numpy = pytest.importorskip("numpy")

# Tokens of "<|im_start|>user\nWhat is the capital of France?"-like text; what they are does not matter here.
GOLDEN_TOKENS = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365]
# Source: transformers 5.24.0, AutoModelForCausalLM.from_pretrained(folder, gguf_file=..., dtype=float32),
# torch 2.13.0 CPU, one thread, logits of the last of the tokens above: the first eight, and the six greatest with ids.
GOLDEN_FIRST = [
    -2.241300106048584, -9.771137237548828, -9.234597206115723, -10.869256019592285,
    -11.41115665435791, -12.472588539123535, -17.954864501953125, -12.466926574707031,
]  # fmt: skip
GOLDEN_TOP = {
    5646: 7.482926368713379, 617: 6.458330154418945, 5905: 6.403980255126953,
    942: 5.316661834716797, 2179: 5.292421340942383, 3579: 5.148769378662109,
}  # fmt: skip
# Source: the same load; rows of weights, exact. Row 33 of q and row 65 of k move when rotary pairs are
# reordered.
GOLDEN_WEIGHTS = {
    ("model.layers.0.self_attn.q_proj.weight", 0): [-0.0963134765625, 0.1573486328125, -0.0963134765625],
    ("model.layers.0.self_attn.q_proj.weight", 33): [-0.06280517578125, 0.1446533203125, 0.00634765625],
    ("model.layers.29.self_attn.k_proj.weight", 65): [0.0205078125, -0.0167236328125, 0.0577392578125],
    ("model.layers.3.mlp.down_proj.weight", 7): [-0.14447021484375, 0.13995361328125, -0.00225830078125],
    ("model.embed_tokens.weight", 100): [0.019052505493164062, -0.08437538146972656, -0.1660289764404297],
}


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _file(path: Path, *, version: int = 3, kind: int = 0, data: bytes = b"\0" * 16) -> Path:
    """One metadata value of each sort and one tensor of 2 rows of 2 numbers."""
    values = (
        _string("general.name") + struct.pack("<I", 8) + _string("a name")
        + _string("a.number") + struct.pack("<If", 6, 0.5)
        + _string("a.list") + struct.pack("<IIQ", 9, 5, 3) + struct.pack("<3i", 1, -2, 3)
        + _string("some.words") + struct.pack("<IIQ", 9, 8, 2) + _string("one") + _string("zwölf")
    )  # fmt: skip
    tensor = _string("weight") + struct.pack("<IQQIQ", 2, 2, 2, kind, 0)
    head = b"GGUF" + struct.pack("<IQQ", version, 1, 4) + values + tensor
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def test_metadata_and_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = read_header(_file(tmp_path / "m.gguf", data=struct.pack("<4f", 1, 2, 3, 4)))
    assert file.metadata == {
        "general.name": "a name",
        "a.number": 0.5,
        "a.list": [1, -2, 3],
        "some.words": ["one", "zwölf"],
    }
    ((name, values),) = read_tensors(file)
    assert name == "weight"
    assert values.tolist() == [[1, 2], [3, 4]]


def test_a_file_that_ends_early_is_corrupt_wherever_it_ends(tmp_path: Path) -> None:
    whole = _file(tmp_path / "m.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    for length in range(4, len(whole)):
        broken.write_bytes(whole[:length])
        with pytest.raises(ModelCorrupt, match=r"broken\.gguf"):
            list(read_tensors(read_header(broken)))


def test_another_kind_of_file_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "readme.gguf"
    path.write_bytes(b"# Read me")
    with pytest.raises(ModelCorrupt, match="no GGUF mark"):
        read_header(path)


def test_an_old_layout_is_refused_with_its_version(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="version 2"):
        read_header(_file(tmp_path / "m.gguf", version=2))


def test_an_unknown_quantisation_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(UnsupportedModel, match="9999"):
        list(read_tensors(read_header(_file(tmp_path / "m.gguf", kind=9999))))


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "Q4_1", "Q8_0"])
def test_own_dequantisation_equals_the_reference_bit_for_bit(name: str, seed: int) -> None:
    constants, quants = pytest.importorskip("gguf.constants"), pytest.importorskip("gguf.quants")
    code = constants.GGMLQuantizationType[name]
    values = numpy.random.default_rng(seed).normal(size=(64, 256)).astype(numpy.float32)
    packed = quants.quantize(values, code).view(numpy.uint8)
    kind = block_kind(int(code))
    ours = kind.decode(packed.reshape(-1, kind.size)).reshape(values.shape)
    assert numpy.array_equal(ours, quants.dequantize(packed, code))


@pytest.mark.model
def test_weights_and_logits_equal_those_of_the_stock_loader(smollm2: LocalEngine) -> None:
    torch = pytest.importorskip("torch")
    weights = smollm2._loaded.weights
    state = weights.state_dict()
    for (name, row), values in GOLDEN_WEIGHTS.items():
        assert state[name][row, :3].tolist() == values, name
    with torch.inference_mode():
        last = weights(torch.tensor([GOLDEN_TOKENS])).logits[0, -1]
    # Sums in another order differ in the last bits; 1e-3 is far below any step between tokens.
    assert last[:8].tolist() == pytest.approx(GOLDEN_FIRST, abs=1e-3)
    top = last.topk(6)
    assert dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)) == pytest.approx(GOLDEN_TOP, abs=1e-3)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif("AGENTRM_SLOW_TESTS" not in os.environ, reason="13 s and accelerate; AGENTRM_SLOW_TESTS=1 runs it")
def test_every_logit_equals_that_of_the_stock_loader(smollm2: LocalEngine) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    path = catalog.locate(catalog.lookup("smollm2-135m"))
    stock = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        theirs = stock.eval()(torch.tensor([GOLDEN_TOKENS])).logits
        ours = smollm2._loaded.weights(torch.tensor([GOLDEN_TOKENS])).logits
    assert torch.equal(ours, theirs)
