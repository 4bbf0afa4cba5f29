"""A picture of the spaces of two modalities by t-SNE."""

from __future__ import annotations

import io
from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from keynet.evaluation.isometry import MODALITIES, Doubles, Floats, PairedVectors, unit_pairs
from keynet.evaluation.page import ACCENT, INK, LINE

PERPLEXITY = 30  # as D1 of the spec asks
LEAST_POINTS = 3 * PERPLEXITY  # each point weighs that many neighbours, as in van der Maaten's code
MAX_POINTS = 500  # photographs drawn; each is two points
COLUMNS = 4
TEXT_COLOR = "#d1641b"


def tsne_png(panels: Mapping[str, PairedVectors], *, seed: int = 0) -> bytes:
    """Return a picture of photographs and texts by t-SNE, as PNG, a panel an entry.

    Where both modalities are equally wide, they are laid out together; else each has a layout and
    a panel of its own, since no distance between the two exists. Starts from principal components,
    perplexity 30; at most 500 photographs are drawn.

    Args:
        panels: Vectors by title.
        seed: Of the choice and of t-SNE.

    Raises:
        ValueError: For no panel, vectors that do not fit, and fewer than 90 photographs.
        ModuleNotFoundError: Without scikit-learn.

    Source: van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 2008.
    """
    if not panels:
        raise ValueError("no vectors to draw; give at least one panel")
    layouts: list[tuple[str, dict[str, Doubles]]] = []
    for title, vectors in panels.items():
        unit = unit_pairs(vectors, f"{title}: ")
        check_points(len(unit.image))
        chosen = np.random.default_rng(seed).permutation(len(unit.image))[:MAX_POINTS]
        image, text = (rows[chosen] for rows in unit)
        if image.shape[1] == text.shape[1]:
            both = _tsne(np.concatenate([image, text]), seed)
            halves = {"image": both[: len(chosen)], "text": both[len(chosen) :]}
            layouts.append((title, halves))
        else:
            layouts += [
                (f"{title}, {name}", {name: _tsne(rows, seed)})
                for name, rows in zip(MODALITIES, (image, text), strict=True)
            ]
    return _drawn(layouts)


def check_points(count: int) -> None:
    """Raise ValueError where ``count`` photographs are too few for t-SNE."""
    if count < LEAST_POINTS:
        raise ValueError(
            f"{count} photographs, t-SNE at perplexity {PERPLEXITY} needs at least {LEAST_POINTS}; "
            "give more"
        )


def _tsne(rows: Floats, seed: int) -> Doubles:
    # Imported here: it takes a second, and nothing else needs it.
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "t-SNE needs scikit-learn; install it with: pip install 'keynet-cache[train]'"
        ) from error
    model = TSNE(init="pca", perplexity=PERPLEXITY, random_state=seed, n_jobs=1)
    return np.asarray(model.fit_transform(rows), dtype=np.float64)


def _drawn(layouts: list[tuple[str, dict[str, Doubles]]]) -> bytes:
    columns = min(COLUMNS, len(layouts))
    rows = -(-len(layouts) // columns)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"font.size": 9, "text.parse_math": False}):
        size = (2.6 * columns, 2.75 * rows + 0.3)
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (title, points) in zip(panels, layouts, strict=False):
            for name, xy in points.items():
                color = ACCENT if name == "image" else TEXT_COLOR
                axes.scatter(*xy.T, s=4, color=color, alpha=0.6, linewidths=0)
            axes.set_title(title, loc="left", fontsize=8, color=INK)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_color(LINE)
        for axes in panels[len(layouts) :]:
            axes.set_axis_off()
        marks = [
            figure.axes[0].scatter([], [], s=16, color=color) for color in (ACCENT, TEXT_COLOR)
        ]
        figure.legend(
            marks, ["photographs", "texts"], loc="outside lower left", ncols=2, frameon=False
        )
        figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
