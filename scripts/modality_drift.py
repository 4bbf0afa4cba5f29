"""What weighing modalities by confidence does when one degrades: python -m scripts.modality_drift

The joint hash over stored embeddings of the packaged encoders, trained on the training split; then
a stream of the test split, first as it is, then with pictures, or texts, degraded (K5). Options of
data, distill and the joint losses may follow: data=emoji.
"""

import argparse
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.table import Table

from data.requests import Source
from keynet.evaluation.cuts import cut
from keynet.evaluation.labels import Labels
from keynet.evaluation.modality_drift import (
    HALVES,
    WEIGHTINGS,
    Drift,
    degraded,
    drift_records,
)
from keynet.evaluation.records import Record
from keynet.training.config import explained
from scripts import embedded
from scripts.embedded import (
    Encoders,
    configuration,
    joint_hash,
    report_folder,
    tell,
    trained_on,
    whole,
)

OUT = "outputs/modality_drift"
BITS = 128  # 64 of each modality, as in K7
BUDGETS = (0.01, 0.05)
SUBSETS = ("all", "same_drawing")
log = logging.getLogger("modality_drift")


def drift(
    source: Source, encoders: Encoders, losses: DictConfig, args: argparse.Namespace
) -> list[Record]:
    """Return what weights change when pictures, or texts, degrade in the second half of a stream.

    Stores and queries are those of the headline figures, and those that ask about stored pictures;
    thresholds are fitted on the calibration split, of which nothing is degraded.

    Args:
        source: Of the requests.
        encoders: What embeds them.
        losses: Of ``loss=joint_hash``.
        args: rows, seed.

    Raises:
        ValueError: When the data has no query of a subset.
    """
    train = trained_on(encoders, source, args.rows)
    splits = {name: encoders.split(source, name) for name in ("calibration", "test")}
    labels = {name: Labels.of(rows.requests) for name, rows in splits.items()}
    for found in labels.values():
        found.require_one_scope("drift of a modality")
    head = joint_hash(train, BITS, args.seed, losses)
    logits = {name: head.logits(rows.image, rows.text) for name, rows in splits.items()}
    records = []
    for subset in SUBSETS:
        cuts = {
            name: cut(found, subset, disjoint_phrasings=source.disjoint_phrasings)
            for name, found in labels.items()
        }
        if not len(cuts["test"].query):
            raise ValueError(f"{source.name} has no query of {subset}; take other data")
        # The cut lists what is answerable first; a stream mixes them.
        order = np.random.default_rng(0).permutation(len(cuts["test"].query))
        stream = replace(
            cuts["test"],
            query=cuts["test"].query[order],
            answerable=cuts["test"].answerable[order],
        )
        asked = splits["test"].take(stream.query)
        log.info("%s: %d queries, twice, %d stored", subset, len(asked), len(stream.store))
        for modality in ("image", "text"):
            changed = encoders.encode(
                [degraded(request, modality, seed) for seed, request in enumerate(asked.requests)]
            )
            told = Drift(
                degraded=modality,
                blocks=head.blocks,
                stored=logits["test"],
                queries={
                    half: head.logits(rows.image, rows.text)
                    for half, rows in zip(HALVES, (asked, changed), strict=True)
                },
                labels=labels["test"],
                cut=stream,
            )
            records += drift_records(
                told, logits["calibration"], labels["calibration"], cuts["calibration"],
                BUDGETS, source.name,
            )  # fmt: skip
    return records


def drift_table(records: Sequence[Record]) -> Table:
    """Return a row a figure, a column a weighting, before and after."""
    table = Table(title=f"{records[0].data}: one modality degrades, {BITS} bits")
    found = {(r.subset, r.method, r.metric): r for r in records}
    for column in ("subset", "figure", *(f"{w}, {h}" for w in WEIGHTINGS for h in HALVES)):
        table.add_column(column)
    for subset in dict.fromkeys(r.subset.rpartition(":")[0] for r in records):
        for name in dict.fromkeys(r.metric for r in records):
            own = ("confidence",) if name.startswith("confidence") else WEIGHTINGS
            cells = (found.get((f"{subset}:{h}", w, name)) for w in own for h in HALVES)
            table.add_row(subset, name, *map(cell, cells))
        table.add_section()
    return table


def cell(record: Record | None) -> str:
    """Return a figure as printed."""
    if record is None:
        return "-"
    return "n/a" if record.value is None else f"{record.value:.3f}"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = embedded.parser("modality_drift", str(__doc__), OUT)
    found.add_argument("--seed", type=whole(0), default=0, help="of the joint hash")
    return found


def main() -> None:
    """Measure, print, write."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args = parser().parse_args()
    cfg = configuration(args.overrides)
    source, encoders = instantiate(cfg.data.source), Encoders(cfg)
    out = report_folder(args.out or Path(OUT, source.name))
    records = drift(source, encoders, cfg.loss, args)
    tell(out, records, drift_table(records))


if __name__ == "__main__":
    explained(main)
