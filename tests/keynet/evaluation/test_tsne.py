from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from keynet.evaluation import tsne
from keynet.evaluation.isometry import PairedVectors
from keynet.evaluation.tsne import LEAST_POINTS, tsne_png


def clusters(count: int, text_dim: int) -> PairedVectors:
    """Photographs and texts in two groups each, far apart."""
    rng = np.random.default_rng(0)
    group = np.arange(count)[:, None] % 2
    image = rng.normal(size=(count, 5)) * 0.05 + np.where(group, np.eye(5)[0], np.eye(5)[1])
    shown = np.eye(text_dim)
    text = rng.normal(size=(count, text_dim)) * 0.05 + np.where(group, shown[0], shown[2])
    return PairedVectors(image.astype(np.float32), text.astype(np.float32))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Principal components in the place of t-SNE; what was laid out."""
    seen: list[np.ndarray] = []

    def components(rows: np.ndarray, seed: int) -> np.ndarray:
        seen.append(rows)
        return rows[:, :2].astype(np.float64)

    monkeypatch.setattr(tsne, "_tsne", components)
    return seen


def test_a_picture_of_both_kinds_of_panel(quick: list[np.ndarray]) -> None:
    panels = {"before": clusters(90, 4), "after $a_b": clusters(90, 5)}
    png = tsne_png(panels)
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        colours = image.convert("RGB").getcolors(2**24)
        assert colours is not None and len(colours) > 10
    # Of different widths each alone, of equal ones together; rows of unit norm.
    assert [rows.shape for rows in quick] == [(90, 5), (90, 4), (180, 5)]
    assert all(np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5) for rows in quick)
    assert tsne_png(panels) == png


def test_many_photographs_are_drawn_in_part(quick: list[np.ndarray]) -> None:
    tsne_png({"after": clusters(700, 5)})
    assert [len(rows) for rows in quick] == [1000]
    assert not np.array_equal(quick[0][:500], clusters(700, 5).image[:500])


@pytest.mark.slow
def test_groups_are_laid_out_apart() -> None:
    vectors = clusters(LEAST_POINTS, 5)
    xy = tsne._tsne(vectors.image, 0)
    one, other = xy[::2], xy[1::2]
    apart = np.linalg.norm(one.mean(0) - other.mean(0))
    assert apart > 3 * max(one.std(0).max(), other.std(0).max())
    assert np.array_equal(tsne._tsne(vectors.image, 0), xy)


def test_too_few_photographs_and_no_panel_are_refused(quick: list[np.ndarray]) -> None:
    with pytest.raises(
        ValueError, match="89 photographs, t-SNE at perplexity 30 needs at least 90"
    ):
        tsne_png({"after": clusters(89, 5)})
    with pytest.raises(ValueError, match="no vectors to draw"):
        tsne_png({})
    assert not quick
