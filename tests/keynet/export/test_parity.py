from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from keynet.export.manifest import read_manifest, set_parity
from keynet.export.parity import Variant, measure_parity
from keynet.preprocess import Preprocessor
from keynet.types import Request


@pytest.fixture
def logits(model: Any) -> Any:
    return lambda *batch: model(*batch).logits


def test_the_model_agrees_with_itself_at_any_batch_and_padding(
    logits: Any, preprocessor: Preprocessor, requests: list[Request]
) -> None:
    seen: list[tuple[int, int]] = []

    def noted(*batch: Tensor) -> Tensor:
        seen.append((batch[0].shape[0], batch[2].shape[1]))
        return logits(*batch)

    found = measure_parity(
        Variant(logits),
        {"one": Variant(noted, batch_size=1), "seven": Variant(logits, batch_size=7)},
        preprocessor,
        requests,
    )
    assert [(one.variant, one.requests, one.most_flips) for one in found] == [
        ("one", 70, 0), ("seven", 70, 0)
    ]  # fmt: skip
    assert {count for count, _ in seen} == {1} and len({length for _, length in seen}) > 1


def test_flips_are_counted_with_their_margins(
    logits: Any, preprocessor: Preprocessor, requests: list[Request]
) -> None:
    batch = preprocessor(requests)
    with torch.no_grad():
        wanted = logits(*batch[:4])
    first = wanted[:, :1].abs()

    def moved(*given: Tensor) -> Tensor:
        changed = logits(*given).clone()
        changed[:, :1] *= -1  # of every request the first bit
        return changed

    (found,) = measure_parity(Variant(logits), {"moved": Variant(moved)}, preprocessor, requests)
    assert found.flipped_bits == pytest.approx(1 / 64)
    assert found.changed_codes == 1 and found.most_flips == 1
    assert found.margin == pytest.approx(float(first.max()))
    assert found.flipped_certain_bits == int((first >= 1e-4).sum())


def test_threads_are_as_before(
    logits: Any, preprocessor: Preprocessor, requests: list[Request]
) -> None:
    before, seen = torch.get_num_threads(), []

    def noted(*batch: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        return logits(*batch)

    variants = {"two": Variant(noted, threads=2)}
    measure_parity(Variant(logits), variants, preprocessor, requests[:1])
    assert seen == [2] and torch.get_num_threads() == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_cannot_be_compared_are_an_error(
    bad: float, logits: Any, preprocessor: Preprocessor, requests: list[Request]
) -> None:
    broken = Variant(lambda *batch: logits(*batch) * bad)
    for reference, variants in ((Variant(logits), {"it": broken}), (broken, {})):
        with pytest.raises(ValueError, match="that are not finite, or not"):
            measure_parity(reference, variants, preprocessor, requests)
    narrow = {"it": Variant(lambda *batch: logits(*batch)[:, :1])}
    with pytest.raises(ValueError, match=r"it gives logits \[64, 1\]"):
        measure_parity(Variant(logits), narrow, preprocessor, requests)


def test_no_requests_are_an_error(logits: Any, preprocessor: Preprocessor) -> None:
    with pytest.raises(ValueError, match="parity needs requests"):
        measure_parity(Variant(logits), {}, preprocessor, [])


def test_the_manifest_keeps_it_and_names_a_radius(
    logits: Any, preprocessor: Preprocessor, requests: list[Request], exported: Path, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_bytes((exported / "manifest.json").read_bytes())
    assert read_manifest(tmp_path).parity_radius is None
    negated = {"negated": Variant(lambda *b: -logits(*b)), "same": Variant(logits)}
    found = measure_parity(Variant(logits), negated, preprocessor, requests[:5])
    assert set_parity(tmp_path, found) == read_manifest(tmp_path)
    assert read_manifest(tmp_path).parity == found
    assert read_manifest(tmp_path).parity_radius == 64
