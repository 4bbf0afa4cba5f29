"""The joint hash beside OrthoHash, ITQ and PCA-sign: python -m scripts.hashes data=emoji

All over the same stored embeddings of the packaged encoders; trained on the training split, judged
by tie-aware mAP between pictures of the test split. With ``--drift``: what weighing modalities by
their confidence does when one of them degrades. Options of training may follow: seed=1.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from torch import Tensor

from data.datamodule import number_samples
from data.requests import Source, Split, image_identity
from data.sampler import HardNegativeBatchSampler
from distill.store import Store, encode_samples, samples_digest, store_folder, write_store
from distill.teacher import Teacher, TeacherError
from keynet.evaluation.average_precision import average_precision, mean_average_precision
from keynet.evaluation.cuts import cut
from keynet.evaluation.hash_baselines import (
    BATCH,
    BITS,
    Codes,
    itq,
    orthohash,
    pca_sign,
    signs,
)
from keynet.evaluation.joint_hash import JointHash, fit_joint_hash
from keynet.evaluation.labels import Labels
from keynet.evaluation.modality_drift import (
    HALVES,
    WEIGHTINGS,
    Drift,
    degraded,
    drift_records,
)
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.report import write_report
from keynet.replay.neighbours import STEP, similarities
from keynet.training.config import explained, register
from keynet.types import Request, Samples

CONF = Path(__file__).parents[1] / "conf"
SEEDS = (0, 1, 2)
EPOCHS = 20  # of the joint hash and of OrthoHash alike
LEARNING_RATE = 1e-2  # best of 1e-3, 3e-3 and 1e-2 for both on emoji's calibration split
CUTOFFS = (None, 1000)
DRIFT_BITS = 128  # 64 of each modality, as in K7
BUDGETS = (0.01, 0.05)
SUBSETS = ("all", "same_drawing")
WIDTH = 180
NO_PAIRS = torch.zeros(0, 2, dtype=torch.int64)  # of pictures and captions
log = logging.getLogger("hashes")


@dataclass(frozen=True)
class Embedded:
    """Requests with both modalities and their unit embeddings [N, Di] and [N, Dt]."""

    requests: list[Request]
    image: Tensor
    text: Tensor

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def both(self) -> NDArray[np.float32]:
        """Image and text side by side [N, Di + Dt]."""
        return torch.cat([self.image, self.text], dim=1).numpy()

    def take(self, rows: Sequence[int] | NDArray[np.generic]) -> "Embedded":
        """Return the requests at ``rows``."""
        at = torch.as_tensor(np.asarray(rows))
        return Embedded([self.requests[n] for n in at.tolist()], self.image[at], self.text[at])


class Encoders:
    """The packaged encoders of pictures and of texts, with the rows that they have stored."""

    def __init__(self, cfg: DictConfig) -> None:
        if not cfg.distill or cfg.distill.store is None:
            raise TeacherError("embeddings are stored: give distill=packaged_quick, and a store")
        self.root = Path(cfg.distill.store)
        self.teachers: dict[str, Teacher] = {
            "image": instantiate(cfg.distill.teachers.lite0),
            "text": instantiate(cfg.distill.teachers.minilm),
        }

    def split(self, source: Source, name: Split) -> Embedded:
        """Return the requests of a split that have both modalities; what is missing is stored."""
        requests = source.requests(name)
        # Those of training are numbered as training numbers them, so that its rows are found.
        samples = number_samples(source, requests) if name == "train" else samples_of(requests)
        digest = samples_digest(samples)
        both = [r for r in requests if r.image is not None and r.text is not None]
        if not both:
            raise ValueError(f"split {name} has no request with image and text; take other data")
        picture = {image_identity(Request(image=p)): n for n, p in enumerate(samples.pictures)}
        text = {t: n for n, t in enumerate(samples.texts)}
        ids = {
            "image": torch.tensor([picture[image_identity(r)] for r in both]),
            "text": torch.tensor([text[str(r.text)] for r in both]),
        }
        rows = {}
        for modality, teacher in self.teachers.items():
            folder = store_folder(self.root, teacher, digest)
            write_store(folder, teacher, samples, digest)
            stored = Store(folder, teacher, samples, digest).rows(modality, ids[modality])
            rows[modality] = F.normalize(stored, dim=1)
        return Embedded(both, **rows)

    def encode(self, requests: Sequence[Request]) -> Embedded:
        """Return requests with both modalities, encoded now and not stored."""
        given = Samples(
            [r.image for r in requests], [str(r.text) for r in requests], NO_PAIRS, list
        )
        rows = {
            modality: F.normalize(
                encode_samples(teacher, given, modality, range(len(requests))).bfloat16().float(),
                dim=1,  # through bf16, as the stored ones are
            )
            for modality, teacher in self.teachers.items()
        }
        return Embedded(list(requests), **rows)


def samples_of(requests: Sequence[Request]) -> Samples:
    """Return the distinct pictures and texts of requests that are not trained on."""
    pictures = {image_identity(r): r.image for r in requests if r.image is not None}
    texts = dict.fromkeys(r.text for r in requests if r.text is not None)
    return Samples(list(pictures.values()), list(texts), NO_PAIRS, list)


def joint_hash(train: Embedded, bits: int, seed: int, losses: DictConfig) -> JointHash:
    """Train both heads by the losses of ``loss=joint_hash``, on batches as of key models."""
    size = min(BATCH, len(train))
    sampler = HardNegativeBatchSampler(
        train.requests, batch_size=size, batches=EPOCHS * (len(train) // size), seed=seed
    )
    return fit_joint_hash(
        train.image,
        train.text,
        torch.from_numpy(Labels.of(train.requests).group),
        bits=bits,
        seed=seed,
        batches=[torch.tensor(rows) for rows in sampler],
        losses=instantiate(losses),
        learning_rate=LEARNING_RATE,
    )


def compare(cfg: DictConfig, args: argparse.Namespace) -> list[Record]:
    """Return mAP of each hash and length: the mean of the seeds with the least and the greatest.

    Half of the pictures of the test split are the database, the others ask; queries without an
    equivalent there are left out. Beside the hashes, cosines of the embeddings themselves.
    """
    source, encoders = instantiate(cfg.data.source), Encoders(cfg)
    train, test = trained_on(encoders, source, args), encoders.split(source, "test")
    labels, classes = Labels.of(test.requests), Labels.of(train.requests).group
    asked, database = between_pictures(labels, args.queries)
    groups = labels.group[asked], labels.group[database]
    log.info(
        "%s: %d training requests of %d groups; %d queries, %d in the database",
        source.name, len(train), len(np.unique(classes)), len(asked), len(database),
    )  # fmt: skip
    both, rows = train.both, test.both
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
        heads = (joint_hash(train, bits, seed, cfg.loss) for seed in args.seeds)
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
        note("pca_sign", bits, [judged(pca_sign(both, bits)(rows))])
    return records


def trained_on(encoders: Encoders, source: Source, args: argparse.Namespace) -> Embedded:
    """Return up to ``args.rows`` requests of the training split, drawn at random."""
    train = encoders.split(source, "train")
    drawn = np.random.default_rng(0).permutation(len(train))[: args.rows]
    return train.take(np.sort(drawn))


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


def drift(cfg: DictConfig, args: argparse.Namespace) -> list[Record]:
    """Return what weights change when pictures, or texts, degrade in the second half of a stream.

    Stores and queries are those of the headline figures, and those that ask about stored pictures;
    thresholds are fitted on the calibration split, of which nothing is degraded.
    """
    source, encoders = instantiate(cfg.data.source), Encoders(cfg)
    train = trained_on(encoders, source, args)
    splits = {name: encoders.split(source, name) for name in ("calibration", "test")}
    labels = {name: Labels.of(rows.requests) for name, rows in splits.items()}
    head = joint_hash(train, DRIFT_BITS, args.seeds[0], cfg.loss)
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


def drift_table(records: Sequence[Record]) -> Table:
    """Return a row a figure, a column a weighting, before and after."""
    table = Table(title=f"{records[0].data}: one modality degrades, {DRIFT_BITS} bits")
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


def configuration(overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of train.py with the packaged encoders and the joint losses."""
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", ["distill=packaged_quick", "loss=joint_hash", *overrides])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(prog="python -m scripts.hashes")
    found.add_argument("--drift", action="store_true", help="one modality degrades, instead of mAP")
    found.add_argument("--rows", type=int, default=20_000, help="training requests at most")
    found.add_argument("--queries", type=int, default=2_000, help="queries of mAP at most")
    found.add_argument("--bits", nargs="+", type=int, default=BITS)
    found.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    found.add_argument("--out", type=Path, help="by default outputs/hashes/DATA")
    found.add_argument("overrides", nargs="*", help="as of train.py")
    return found


def main() -> None:
    """Measure, print, write."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args = parser().parse_args()
    cfg = configuration(args.overrides)
    records = drift(cfg, args) if args.drift else compare(cfg, args)
    out = args.out or Path("outputs/hashes") / (records[0].data + ("_drift" if args.drift else ""))
    write_report(out / "report.json", records, " ".join(["python", *sys.argv]))
    table = drift_table(records) if args.drift else compared_table(records)
    console = Console()
    if not console.is_terminal:  # rich takes a pipe for 80 columns wide
        console.width = max(console.width, WIDTH)
    console.print(table)
    print(f"report: {out / 'report.json'}")


if __name__ == "__main__":
    explained(main)
