"""The joint hash beside OrthoHash, ITQ and PCA-sign: python -m scripts.hashes data=emoji

All over the same stored embeddings of the packaged encoders; trained on the training split, judged
by tie-aware mAP between pictures of the test split. Options of data, distill and the joint losses
may follow: loss.hash_cosine.weight=0.1.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig
from rich.table import Table

from data.requests import Source
from keynet.evaluation.average_precision import average_precision, mean_average_precision
from keynet.evaluation.hash_baselines import (
    BITS,
    Codes,
    itq,
    orthohash,
    pca_sign,
    signs,
)
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Record, Sheet
from keynet.replay.neighbours import STEP, similarities
from keynet.training.config import explained
from scripts import embedded
from scripts.embedded import (
    EPOCHS,
    LEARNING_RATE,
    Encoders,
    configuration,
    joint_hash,
    report_folder,
    tell,
    trained_on,
    whole,
)

OUT = "outputs/hashes"
SEEDS = (0, 1, 2)
CUTOFFS = (None, 1000)
log = logging.getLogger("hashes")


def compare(
    source: Source, encoders: Encoders, losses: DictConfig, args: argparse.Namespace
) -> list[Record]:
    """Return mAP of each hash and length: the mean of the seeds with the least and the greatest.

    Half of the pictures of the test split are the database, the others ask; queries without an
    equivalent there are left out. Beside the hashes, cosines of the embeddings themselves.

    Args:
        source: Of the requests.
        encoders: What embeds them.
        losses: Of ``loss=joint_hash``.
        args: rows, queries, bits, seeds.

    Raises:
        ValueError: When no query has an equivalent, or rows are too few for the bits.
    """
    train, test = trained_on(encoders, source, args.rows), encoders.split(source, "test")
    labels, classes = Labels.of(test.requests), Labels.of(train.requests).group
    labels.require_one_scope("mAP over a database")
    asked, database = between_pictures(labels, args.queries)
    groups = labels.group[asked], labels.group[database]
    log.info(
        "%s: %d training requests of %d groups; %d queries, %d in the database",
        source.name, len(train), len(np.unique(classes)), len(asked), len(database),
    )  # fmt: skip
    both, rows = train.both, test.both
    # Before what takes long: it wants as many rows as bits.
    by_axes = {bits: pca_sign(both, bits) for bits in args.bits}
    records: list[Record] = []

    def note(method: str, bits: int | None, runs: list[list[float]]) -> None:
        sheet = Sheet(source.name, "test", "other_pictures", method, bits)
        for cutoff, values in zip(CUTOFFS, zip(*runs, strict=True), strict=True):
            records.append(sheet.spread(metric(cutoff), values, len(asked)))
        log.info("%s, %s bits: %s", method, bits, runs)

    def judged(codes: Codes) -> list[float]:
        return mean_average_precision(codes[asked], codes[database], *groups, CUTOFFS)

    # In steps: whether two cosines tie must not depend on the order of additions.
    steps = -np.rint(similarities(rows[asked], rows[database]) / STEP).astype(np.int64)
    relevant = groups[0][:, None] == groups[1][None]
    found = [float(np.nanmean(average_precision(steps, relevant, cutoff))) for cutoff in CUTOFFS]
    note("concat_l2", None, [found])
    for bits in args.bits:
        heads = (joint_hash(train, bits, seed, losses) for seed in args.seeds)
        note(
            "joint_hash",
            bits,
            [judged(signs(head.logits(test.image, test.text))) for head in heads],
        )
        by_class = (
            orthohash(both, classes, bits, seed=seed, epochs=EPOCHS, learning_rate=LEARNING_RATE)
            for seed in args.seeds
        )
        note("orthohash", bits, [judged(code(rows)) for code in by_class])
        rotated = (itq(both, bits, seed=seed) for seed in args.seeds)
        note("itq", bits, [judged(code(rows)) for code in rotated])
        note("pca_sign", bits, [judged(by_axes[bits](rows))])
    return records


def between_pictures(labels: Labels, queries: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return queries and database, which share no picture; each query has an equivalent there.

    Raises:
        ValueError: When no query has one.
    """
    rng = np.random.default_rng(0)
    drawn = rng.permutation(np.unique(labels.picture))
    stored = np.isin(labels.picture, drawn[: len(drawn) // 2])
    asked = np.flatnonzero(~stored & np.isin(labels.group, labels.group[stored]))
    if not len(asked):
        raise ValueError("no request has an equivalent on another picture; take other data")
    return np.sort(rng.permutation(asked)[:queries]), np.flatnonzero(stored)


def metric(cutoff: int | None) -> str:
    """Return what mAP at a cut-off is called in records."""
    return f"map_at_{'all' if cutoff is None else cutoff}"


def compared_table(records: Sequence[Record]) -> Table:
    """Return a row a method, a column a length and cut-off."""
    lengths = list(dict.fromkeys(r.bits for r in records))
    table = Table(title=f"{records[0].data}: tie-aware mAP, mean of seeds (least to greatest)")
    for column in ("method", "bits", *(metric(cutoff) for cutoff in CUTOFFS)):
        table.add_column(column)
    found = {(r.method, r.bits, r.metric): r for r in records}
    for bits in lengths:
        for method in dict.fromkeys(r.method for r in records if r.bits == bits):
            cells = [found[method, bits, metric(cutoff)] for cutoff in CUTOFFS]
            length = "float" if bits is None else str(bits)
            table.add_row(method, length, *map(spread, cells))
        table.add_section()
    return table


def spread(record: Record) -> str:
    """Return a figure with what its seeds span, where they differ."""
    value = f"{record.value:.3f}"
    return (
        value if record.low == record.high else f"{value} ({record.low:.3f} to {record.high:.3f})"
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = embedded.parser("hashes", str(__doc__), OUT)
    found.add_argument("--queries", type=whole(1), default=2_000, help="queries of mAP at most")
    found.add_argument("--bits", nargs="+", type=int, choices=BITS, default=BITS)
    found.add_argument("--seeds", nargs="+", type=whole(0), default=SEEDS)
    return found


def main() -> None:
    """Measure, print, write."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args = parser().parse_args()
    cfg = configuration(args.overrides)
    source, encoders = instantiate(cfg.data.source), Encoders(cfg)
    out = report_folder(args.out or Path(OUT, source.name))
    records = compare(source, encoders, cfg.loss, args)
    tell(out, records, compared_table(records))


if __name__ == "__main__":
    explained(main)
