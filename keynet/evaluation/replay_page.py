"""The page of a replay: its tables, curves, root causes and worst false hits in one file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keynet.evaluation.false_hits import count_kinds
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.page import Pair, inline_svg, plot_settings, write_page
from keynet.evaluation.replay_findings import Findings
from keynet.replay.closed_loop import FALSE_HIT
from keynet.replay.neighbours import Floats
from keynet.types import Request

PAIRS_SHOWN = 12


def write_replay_page(
    path: Path, title: str, found: Findings, attribution: Sequence[str], command: str
) -> None:
    """Write the page, whole or not at all.

    Args:
        path: Where to.
        title: Of the page.
        found: What is shown.
        attribution: Whose art is shown, and its licence; a line each.
        command: The command line that measured.

    Raises:
        OSError: When the file cannot be written.
    """
    with plot_settings():
        plots = [
            f"<h2>{escape(name)}</h2>" + inline_svg(figure, name, f"plot{number}")
            for number, (name, figure) in enumerate(found.plots)
        ]
    pairs = {"Worst false hits": found.pairs}
    write_page(path, title, found.grids, plots, pairs, attribution, command, found.records)


def worst_false_hits(
    requests: Sequence[Request],
    labels: Labels,
    order: Ints,
    outcome: NDArray[np.int8],
    served: Ints,
    similarity: Floats,
) -> list[Pair]:
    """Return the most similar false hits of a replay, each pair of groups once.

    Args:
        requests: The pool.
        labels: Of it.
        order: int64 [V], requests as visited.
        outcome: int8 [V], see ``CacheReplay``.
        served: int64 [V].
        similarity: float32 [V].
    """
    wrong = np.flatnonzero(outcome == FALSE_HIT).tolist()
    wrong.sort(key=lambda at: -float(similarity[at]))
    pairs: dict[tuple[int, int], Pair] = {}
    for at in wrong:
        query, other = int(order[at]), int(served[at])
        mistake = int(labels.group[query]), int(labels.group[other])
        if mistake in pairs or len(pairs) == PAIRS_SHOWN:
            continue
        kinds = count_kinds(labels, order[at : at + 1], served[at : at + 1])
        asked, answer = requests[query], requests[other]
        pairs[mistake] = Pair(
            _bytes(asked), asked.text, asked.response,
            _bytes(answer), answer.text, answer.response,
            float(similarity[at]), next(kind for kind, count in kinds.items() if count),
        )  # fmt: skip
    return list(pairs.values())


def _bytes(request: Request) -> bytes | None:
    if isinstance(request.image, str | Path):
        return Path(request.image).read_bytes()
    return request.image if isinstance(request.image, bytes) else None
