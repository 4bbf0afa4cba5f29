from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aligners.mm_align import MMAlign
from aligners.weights import (
    DTYPES,
    HotModule,
    load_weights,
    read_weights,
    save_weights,
    weight_error,
)

ALLOWED = {"fp32": 0.0, "fp16": 2**-11, "int8": 0.5 / 127}  # of the greatest weight


def head(seed: int, dtype: torch.dtype = torch.float32) -> MMAlign:
    torch.manual_seed(seed)
    return MMAlign(input_dims={"image": 24, "text": 16}, key_dim=12).to(dtype)


def values(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def rewritten(path: Path, **changed: Tensor | None) -> Path:
    """Save the file again with other tensors, `__` in names for a dot, None for none."""
    tensors = load_file(path) | {name.replace("__", "."): t for name, t in changed.items()}
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, path, header["__metadata__"])
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_file_gives_back_the_weights(tmp_path: Path, dtype: str) -> None:
    old, new = head(0), head(1)
    saved = save_weights(new, tmp_path / "head", dtype)
    places = {name: tensor.data_ptr() for name, tensor in old.state_dict().items()}
    assert load_weights(old, tmp_path / "head") == saved
    assert places == {name: tensor.data_ptr() for name, tensor in old.state_dict().items()}
    assert all(weight.requires_grad for weight in old.parameters())
    worst = 0.0
    for name, tensor in values(new).items():
        off = float((old.state_dict()[name] - tensor).abs().max() / tensor.abs().max())
        assert off <= ALLOWED[dtype] * 1.001
        worst = max(worst, off)
    assert saved.max_error == pytest.approx(worst, rel=1e-4)
    assert saved.mean_error <= saved.max_error
    assert (saved.dtype, saved.tensors) == (dtype, 4)
    assert saved.bytes == (tmp_path / "head").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_int8_has_a_scale_a_row_for_matrices_alone(tmp_path: Path) -> None:
    module = head(0)
    with torch.no_grad():
        module.projections["text"].weight[3] = 0
        module.projections["text"].weight[4] *= 1000  # its row alone pays for it
    save_weights(module, tmp_path / "head", "int8")
    stored = load_file(tmp_path / "head")
    weight, scale = stored["projections.text.weight"], stored["projections.text.weight.scale"]
    assert weight.dtype == torch.int8 and scale.shape == (12,) and scale[3] == 1
    assert weight.abs().amax(1).tolist() == [127] * 3 + [0] + [127] * 8
    assert torch.equal(stored["projections.text.bias"], module.projections["text"].bias)
    found = read_weights(tmp_path / "head")[0]["projections.text.weight"]
    exact = module.projections["text"].weight
    assert ((found - exact).abs() <= scale[:, None] * 0.501).all()


def test_a_running_half_module_takes_a_file_in_its_own_dtype(tmp_path: Path) -> None:
    save_weights(head(1), tmp_path / "head", "fp32")
    running = head(0, torch.bfloat16)
    load_weights(running, tmp_path / "head")
    for name, tensor in values(head(1)).items():
        assert torch.equal(running.state_dict()[name], tensor.bfloat16())


def test_buffers_and_whole_numbers_pass(tmp_path: Path) -> None:
    norm, other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    norm(torch.randn(8, 4))
    for dtype in DTYPES:
        save_weights(norm, tmp_path / "norm", dtype)
        load_weights(other, tmp_path / "norm")
        assert other.num_batches_tracked == 1
        torch.testing.assert_close(other.running_var, norm.running_var, rtol=1e-3, atol=0)


NAN = torch.full((12, 16), float("nan"))
BAD = {
    "they lack projections.text.bias$": {"projections__text__bias": None},
    "they have an unknown extra$": {"extra": torch.ones(1)},
    r"they have projections.text.weight \[12, 15\], not \[12, 16\]$": {
        "projections__text__weight": torch.ones(12, 15)
    },
    "they have projections.text.bias in torch.int64, not torch.float32": {
        "projections__text__bias": torch.ones(12, dtype=torch.int64)
    },
    "projections.text.weight is not finite": {"projections__text__weight": NAN},
    r"projections.text.weight.scale \[3\] fits no int8 matrix": {
        "projections__text__weight__scale": torch.ones(3)
    },
}


BAD_INT8 = {
    "weight.scale is no scale: expected finite float32 above 0": {
        "projections__text__weight__scale": torch.zeros(12)
    },
    "text.weight.scale is no scale": {"projections__text__weight__scale": -torch.ones(12)},
    "weight.scale is no scale": {"projections__text__weight__scale": torch.ones(12).double()},
    "projections.image.weight.scale is no scale": {
        "projections__image__weight__scale": torch.full((12,), float("inf"))
    },
    "projections.text.weight is not finite": {
        "projections__text__weight__scale": torch.full((12,), 3e38)  # after unpacking
    },
    r"say that they are int8, but projections.text.weight is torch.float32 \[12, 16\]": {
        "projections__text__weight": torch.ones(12, 16), "projections__text__weight__scale": None
    },
    r"they have projections.text.weight in torch.int8, not torch.float32": {
        "projections__text__weight__scale": None
    },
}  # fmt: skip
BAD_FP32 = {
    **BAD,
    r"say that they are fp32, but projections.text.bias is torch.float16 \[12\]": {
        "projections__text__bias": torch.ones(12).half()
    },
    "say that they are fp32, but projections.text.bias is torch.complex64": {
        "projections__text__bias": torch.ones(12, dtype=torch.complex64)
    },
    "say that they are fp32, but projections.text.weight.scale is of int8": {
        "projections__text__weight": torch.ones(12, 16, dtype=torch.int8),
        "projections__text__weight__scale": torch.ones(12),
    },
    r"projections.text.weight \[12, 0\] is empty": {"projections__text__weight": torch.ones(12, 0)},
}


@pytest.mark.parametrize(
    ("dtype", "message", "changes"),
    [(d, *case) for d, bad in (("fp32", BAD_FP32), ("int8", BAD_INT8)) for case in bad.items()],
)
def test_a_bad_file_changes_nothing(
    tmp_path: Path, dtype: str, message: str, changes: dict[str, Tensor | None]
) -> None:
    running = head(0)
    save_weights(head(1), tmp_path / "head", dtype)
    path = rewritten(tmp_path / "head", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(running, path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert all(torch.equal(running.state_dict()[n], t) for n, t in values(head(0)).items())


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read .*No such file"):
        load_weights(head(0), tmp_path / "none")
    for content in (b"", b"\x08\0\0\0\0\0\0\0nonsense", b"x" * 100):
        (tmp_path / "damaged").write_bytes(content)
        with pytest.raises(ValueError, match="damaged cannot be read"):
            load_weights(head(0), tmp_path / "damaged")
    save_file(head(0).state_dict(), tmp_path / "plain")
    with pytest.raises(ValueError, match=r"plain do not say what they are .*write them with"):
        load_weights(head(0), tmp_path / "plain")
    save_weights(head(0), tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:-4])
    with pytest.raises(ValueError, match="cut cannot be read"):
        load_weights(head(0), tmp_path / "cut")


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "none" / "head"):
        with pytest.raises(ValueError, match=f"weights {path} cannot be written"):
            save_weights(head(0), path)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]
    save_weights(head(0), tmp_path / "head")
    (tmp_path / "plain").touch()
    assert (tmp_path / "head").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_empty_weights_are_refused(tmp_path: Path) -> None:
    empty = nn.Module()
    empty.register_buffer("nothing", torch.zeros(3, 0))
    for dtype in DTYPES:
        with pytest.raises(ValueError, match=r"module: nothing \[3, 0\] is empty; give it a width"):
            save_weights(empty, tmp_path / "empty", dtype)


def test_equal_weights_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_weights(head(0), tmp_path / name, "int8")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_light_form_has_files_of_its_own(tmp_path: Path) -> None:
    save_weights(head(1), tmp_path / "head")
    with pytest.raises(ValueError, match="do not fit: they have an unknown projections"):
        load_weights(head(0).frozen(), tmp_path / "head")
    save_weights(head(1).frozen(), tmp_path / "light")
    running = head(0).frozen()
    load_weights(running, tmp_path / "light")
    rows = torch.randn(3, 16)
    assert torch.equal(running.project("text", rows), head(1).frozen().project("text", rows))


def test_what_a_dtype_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype 'int4' of weights: expected one of fp32, fp16"):
        save_weights(head(0), tmp_path / "head", "int4")
    module = head(0)
    with torch.no_grad():
        module.projections["text"].bias[0] = 1e6
    with pytest.raises(ValueError, match=r"weights as fp16: projections.text.bias is not finite"):
        save_weights(module, tmp_path / "head", "fp16")
    assert not (tmp_path / "head").exists()
    save_weights(module, tmp_path / "head", "fp32")
    running = head(0, torch.float16)
    with pytest.raises(ValueError, match=r"module's dtype: projections\.text\.bias"):
        load_weights(running, tmp_path / "head")
    assert torch.equal(running.projections["image"].bias, head(0).half().projections["image"].bias)


def test_the_error_against_fp32(tmp_path: Path) -> None:
    module, rows = head(0), {"image": torch.randn(50, 24), "text": torch.randn(50, 16)}
    found = {}
    for dtype in DTYPES:
        report = save_weights(module, tmp_path / dtype, dtype)
        found[dtype] = error = weight_error(module, tmp_path / dtype, rows)
        assert error.max_weight == pytest.approx(report.max_error)
        assert error.mean_weight == pytest.approx(report.mean_error)
        assert 0 <= error.mean_cosine <= error.max_cosine
    assert found["fp32"].max_weight == 0 and found["fp32"].max_cosine < 1e-12
    assert found["fp16"].max_cosine < 1e-6 < found["int8"].max_cosine < 1e-3
    assert all(torch.equal(module.state_dict()[n], t) for n, t in values(head(0)).items())
    one = weight_error(module, tmp_path / "int8", {"text": rows["text"]})
    assert 0 < one.max_cosine <= found["int8"].max_cosine
    with pytest.raises(ValueError, match="text has no rows to measure an error on"):
        weight_error(module, tmp_path / "int8", rows | {"text": torch.ones(0, 16)})


def test_a_hot_module_loads_what_was_saved_of_it(tmp_path: Path) -> None:
    hot = HotModule(head(1))
    save_weights(hot, tmp_path / "hot")
    save_weights(head(1), tmp_path / "head")
    assert (tmp_path / "hot").read_bytes() == (tmp_path / "head").read_bytes()
    hot.load(tmp_path / "hot")


def test_no_forward_of_a_hot_module_mixes_weights(tmp_path: Path) -> None:
    rows = {"text": torch.randn(2, 16)}
    masks = {"text": torch.ones(2, dtype=torch.bool)}
    for seed in (0, 1):
        save_weights(head(seed), tmp_path / str(seed))
    allowed = [head(seed).eval()(rows, masks)["text"] for seed in (0, 1)]
    hot, stop, seen = HotModule(head(0).eval()), threading.Event(), [0, 0, 0]

    def serve() -> None:
        while not stop.is_set():
            found = hot(rows, masks)["text"]
            seen[next((n for n, rows in enumerate(allowed) if torch.equal(rows, found)), 2)] += 1

    thread = threading.Thread(target=serve)
    thread.start()
    for n in range(60):
        hot.load(tmp_path / str((n + 1) % 2))
    stop.set()
    thread.join()
    assert seen[2] == 0 and sum(seen) > 0
    assert torch.equal(hot(rows, masks)["text"], allowed[0])
    before = hot.module
    with pytest.raises(ValueError, match="cannot be read"):
        hot.load(tmp_path / "none")
    assert hot.module is before and not hot.module.training
