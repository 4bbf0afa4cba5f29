from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import data.features
from data.datamodule import RequestBatches, RequestDataModule
from data.features import FeatureError, content_digest, kept
from keynet.types import RequestError

ROWS = torch.arange(6.0).view(3, 2).to(torch.bfloat16)


class CountingStem:
    """Mean colours, or the sum of token numbers; counts what it is asked."""

    def __init__(self, fingerprint: str = "0" * 16) -> None:
        self.fingerprint, self.asked = fingerprint, 0

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.asked += len(inputs[0])
        if len(inputs) == 1:
            return inputs[0].float().mean((2, 3)).to(torch.bfloat16)
        tokens, mask = inputs
        return torch.stack([(tokens * mask).sum(1), mask.sum(1)], 1).to(torch.bfloat16)


def module(source: Any, folder: Path | None, size: int = 16) -> tuple[RequestDataModule, Any]:
    made = RequestDataModule(
        source=source, image_size=size, max_tokens=32, long_text="error", vocab_size=300,
        batch_size=16, batches_per_epoch=2, seed=0, num_workers=0, store_stems=True,
        features=folder,
    )  # fmt: skip
    stems = {"image": CountingStem(), "text": CountingStem("1" * 16)}
    made.stems = dict(stems)
    return made, stems


def equal(one: Any, other: Any) -> bool:
    return all(map(torch.equal, one, other))


def test_rows_are_made_once_and_kept(tmp_path: Path) -> None:
    def fail() -> Tensor:
        raise AssertionError("made again")

    assert torch.equal(kept(tmp_path / "new", "a", 3, lambda: ROWS), ROWS)
    assert torch.equal(kept(tmp_path / "new", "a", 3, fail), ROWS)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.safetensors"]
    assert torch.equal(kept(None, "a", 3, lambda: ROWS + 1), ROWS + 1)


def test_a_damaged_file_is_an_error_and_stays(tmp_path: Path) -> None:
    kept(tmp_path, "a", 3, lambda: ROWS)
    path = tmp_path / "a.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(FeatureError, match=r"a\.safetensors is damaged .*; remove it"):
        kept(tmp_path, "a", 3, lambda: ROWS)
    assert path.exists()


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (ROWS[:2], r"shape \[2, 2\], expected 3 rows"),
        (ROWS[0, 0], r"shape \[\], expected 3 rows"),
        (ROWS.to(torch.int64), "int64, expected floating point"),
        (ROWS / 0, "values that are not finite"),
    ],
)
def test_rows_that_are_none_are_an_error(tmp_path: Path, rows: Tensor, fault: str) -> None:
    save_file({"rows": rows.contiguous()}, tmp_path / "a.safetensors")
    with pytest.raises(FeatureError, match=rf"a\.safetensors is damaged \(.*{fault}\); remove it"):
        kept(tmp_path, "a", 3, lambda: ROWS)
    for folder in (tmp_path / "new", None):
        with pytest.raises(FeatureError, match=f"features a are unusable .*{fault}"):
            kept(folder, "a", 3, lambda: rows)
    assert not list((tmp_path / "new").iterdir())


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def fail() -> Tensor:
        raise AssertionError("made before it was tried")

    with pytest.raises(FeatureError, match=r"cannot be written .*data\.features"):
        kept(tmp_path / "file", "a", 3, fail)


def test_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: dict[str, Tensor], path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data.features, "save_file", full)
    with pytest.raises(FeatureError, match="No space left"):
        kept(tmp_path, "a", 3, lambda: ROWS)
    assert not list(tmp_path.iterdir())


def test_batches_hold_features_in_place_of_pixels_and_tokens(toy_source: Any) -> None:
    made, _ = module(toy_source, None)
    plain = RequestBatches(made.requests, made.preprocessor)
    image_alone = next(i for i, r in enumerate(made.requests) if r.text is None)
    text_alone = next(i for i, r in enumerate(made.requests) if r.image is None)
    chosen = [0, 1, 40, image_alone, text_alone, 0]
    batch, pixels = made.batches[chosen], plain[chosen]
    assert torch.equal(batch.images, CountingStem()(pixels.images))
    texts = int(batch.text_index.max()) + 1
    expected = CountingStem()(pixels.tokens, pixels.token_mask)[:texts]
    assert torch.equal(batch.tokens[:texts], expected)
    assert batch.token_mask.shape == (len(batch.tokens), 1)
    assert torch.equal(batch.token_mask[:texts, 0], pixels.token_mask[:texts].any(1))
    assert equal(batch[4:], pixels[4:]) and torch.equal(batch.image_mask, pixels.image_mask)


def test_another_run_asks_the_encoders_nothing(tmp_path: Path, toy_source: Any) -> None:
    first, _ = module(toy_source, tmp_path)
    expected = first.batches[list(range(20))]
    again, stems = module(toy_source, tmp_path)
    assert equal(again.batches[list(range(20))], expected)
    assert [stem.asked for stem in stems.values()] == [0, 0]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("changed", ["weights", "size", "requests"])
def test_what_decides_features_makes_another_file(
    tmp_path: Path, toy_source: Any, changed: str
) -> None:
    _ = module(toy_source, tmp_path)[0].batches
    other, stems = module(toy_source, tmp_path, 24 if changed == "size" else 16)
    if changed == "weights":
        stems["image"].fingerprint = "2" * 16
    if changed == "requests":
        other.requests = other.requests[5:]
    _ = other.batches
    assert stems["image"].asked > 0
    assert len([p for p in tmp_path.iterdir() if p.name.startswith("image")]) == 2


def test_kept_rows_are_what_the_encoder_gave(tmp_path: Path, toy_source: Any) -> None:
    made, stems = module(toy_source, tmp_path)
    _ = made.batches
    (path,) = (p for p in tmp_path.iterdir() if p.name.startswith("image"))
    pictures = len({r.image for r in made.requests} - {None})
    rows = load_file(path)["rows"]
    assert rows.shape == (pictures + 1, 3) and stems["image"].asked == pictures + 1
    assert not rows[-1].any()  # the absent picture


def test_digests_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"bytes")
    assert content_digest(b"bytes") == content_digest(tmp_path / "a.png")
    pixels = np.zeros((2, 3, 3), np.uint8)
    assert content_digest(pixels) != content_digest(pixels.reshape(3, 2, 3))
    with pytest.raises(RequestError, match=r"image .*b\.png cannot be read"):
        content_digest(tmp_path / "b.png")
