"""Linear layers whose weights are ordered for the CPU: the same numbers, whoever stands beside a row."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agentrm.models.engine.build import fingerprint  # noqa: E402
from agentrm.models.engine.linear import PackedLinear, pack  # noqa: E402
from agentrm.models.loading import load_model  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def plain(dtype: Any = torch.float32) -> Any:
    return load_model("tiny-random", torch.device("cpu"), dtype)


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_what_the_plain_one_does(bias: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 200, bias=bias)
    x = torch.randn(1, 11, 96)
    with torch.inference_mode():
        assert torch.allclose(PackedLinear(layer)(x), layer(x), atol=1e-5)


def test_a_row_is_rounded_in_the_same_way_whatever_rows_stand_beside_it() -> None:
    torch.manual_seed(0)
    layer = PackedLinear(torch.nn.Linear(576, 1536, bias=False))
    x = torch.randn(40, 576)
    with torch.inference_mode():
        together = layer(x)
        for rows in (1, 2, 3, 8, 17):
            assert torch.equal(layer(x[:rows].contiguous()), together[:rows])


def test_packing_keeps_the_weights_and_their_name_and_does_it_once() -> None:
    loaded = plain()
    before, name = {key: value.clone() for key, value in loaded.weights.state_dict().items()}, fingerprint(loaded)
    pack(loaded.weights)
    packed = [module for module in loaded.weights.modules() if isinstance(module, PackedLinear)]
    pack(loaded.weights)
    assert packed == [module for module in loaded.weights.modules() if isinstance(module, PackedLinear)]
    assert not any(type(module) is torch.nn.Linear for module in loaded.weights.modules())
    after = loaded.weights.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert fingerprint(loaded) == name


def test_weights_below_float32_stay_as_they_are() -> None:
    loaded = plain(torch.bfloat16)
    pack(loaded.weights)
    assert not any(isinstance(module, PackedLinear) for module in loaded.weights.modules())
