from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from keynet.export.exporter import exporter
from keynet.export.int8 import round_weights
from keynet.export.loader import load_key_model
from keynet.export.manifest import MODEL, ONNX, PT2
from keynet.export.verify import main
from keynet.preprocess import Preprocessor
from keynet.types import Request


def test_weights_move_by_half_a_step_at_most_and_zero_rows_stay() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 6)
    with torch.no_grad():
        layer.weight[2] = 0
    before = layer.weight.detach().clone()
    round_weights(layer)
    step = before.abs().amax(1, keepdim=True) / 127
    assert ((layer.weight - before).abs() <= 0.5001 * step).all()
    assert not torch.equal(layer.weight, before)
    assert layer.weight[2].eq(0).all()


@pytest.mark.slow
def test_an_export_in_int8_is_smaller_and_close(
    model: Any,
    preprocessor: Preprocessor,
    golden: list[Request],
    exported: Path,
    requests: list[Request],
    tmp_path: Path,
) -> None:
    wide = copy.deepcopy(model)
    wide.table = nn.Embedding(20_000, model.key_dim)
    plain, small = tmp_path / "plain", tmp_path / "small"
    for folder, weights in ((plain, "float32"), (small, "int8")):
        export = exporter(formats=["pt2", "onnx"], weights=weights, kernels=[])
        export(wide, preprocessor, folder, "tiny", 1, golden)
    for name in (MODEL, PT2, ONNX):
        assert (small / name).stat().st_size < 0.4 * (plain / name).stat().st_size
    before, after = load_key_model(plain), load_key_model(small)
    assert before.space.fingerprint != after.space.fingerprint
    gap = abs(before.encode_arrays(requests)[0] - after.encode_arrays(requests)[0]).max()
    assert 0 < gap < 0.02
    assert main([str(small)]) == 0


def test_other_weights_are_refused_before_anything() -> None:
    with pytest.raises(ValueError, match=r"export\.weights='int4': expected one of float32, int8"):
        exporter(formats=[], weights="int4", kernels=[])
