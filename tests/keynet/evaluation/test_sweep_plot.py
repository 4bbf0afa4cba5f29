from __future__ import annotations

import io

import pytest
from PIL import Image

from keynet.evaluation.sweep_plot import sweep_png

LABELS = {"setting": "alpha", "figure": "hits"}


def drawn(points: dict[float, list[float]], others: dict[str, list[float]]) -> Image.Image:
    return Image.open(io.BytesIO(sweep_png(points, others, **LABELS)))


def test_another_curve_is_another_picture() -> None:
    flat = drawn({0.0: [0.5, 0.5], 1.0: [0.5, 0.5]}, {})
    rising = drawn({0.0: [0.2, 0.3], 1.0: [0.8, 0.9]}, {"learned": [0.5]})
    assert flat.size == rising.size == (780, 480)
    assert flat.tobytes() != rising.tobytes()


@pytest.mark.parametrize("points", [{}, {0.5: []}])
def test_nothing_to_draw_is_an_error(points: dict[float, list[float]]) -> None:
    with pytest.raises(ValueError, match="no points to draw"):
        sweep_png(points, {}, **LABELS)
