"""An exported key model and its baselines, judged on one data source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from keynet.evaluation import baselines
from keynet.evaluation.calibration import stored
from keynet.evaluation.captions import (
    CaptionVectors,
    compared_records,
    gain_record,
    recall_records,
)
from keynet.evaluation.closed_loop import SINGLE_PASS, identity_records
from keynet.evaluation.consistency import Perturb, consistency_records
from keynet.evaluation.cuts import with_both
from keynet.evaluation.false_hits import count_kinds
from keynet.evaluation.html import Curve
from keynet.evaluation.judge import Judgement, judge, oracle_records
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.latency import latency_records
from keynet.evaluation.left_out import left_out_records
from keynet.evaluation.page import MISS, Pair
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.settings import JudgeSettings
from keynet.evaluation.table import label
from keynet.export.loader import KeyEncoder
from keynet.export.manifest import StoredThreshold
from keynet.progress import progress_bar
from keynet.types import Request

Rows = NDArray[np.float32]
CHUNK = 512
IDENTITIES = ("exact", "text_only", "image_only")
PAIRS_SHOWN = 12


class EvaluationSource(Protocol):
    """The part of a data source that is evaluated (``data.requests.Source``)."""

    name: str
    disjoint_phrasings: bool

    def requests(self, split: str) -> list[Request]:
        """Return the requests of ``calibration`` or ``test``."""
        ...


@runtime_checkable
class CaptionedSource(Protocol):
    """One that also has captions (``data.requests.CaptionedSource``)."""

    def captions(self, split: str) -> list[Request]:
        """Return pictures of the test split with texts that describe them."""
        ...


class Teacher(Protocol):
    """The part of a teacher that is evaluated (``distill.teacher.Teacher``)."""

    name: str
    modalities: tuple[str, ...]

    def encode(self, requests: Sequence[Request]) -> tuple[Tensor | None, Tensor | None]:
        """Return image and text embeddings."""
        ...


@dataclass
class Evaluation:
    """What is said of a model and its baselines on one data source."""

    records: list[Record] = field(default_factory=list)
    curves: dict[str, list[Curve]] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    thresholds: list[StoredThreshold] = field(default_factory=list)


def evaluate(
    encoder: KeyEncoder,
    source: EvaluationSource,
    *,
    method: str,
    perturb: Perturb,
    settings: JudgeSettings,
    baseline_image_size: int | None = 224,
    consistency_requests: int = 1000,
    latency_requests: int = 200,
    teachers: Sequence[Teacher] = (),
    against: KeyEncoder | None = None,
) -> Evaluation:
    """Judge the exported model, float key and every prefix of its code, and the baselines.

    Args:
        encoder: The exported model.
        source: Its calibration split gives thresholds, its test split the figures.
        method: Name of the model in the records.
        perturb: Perturbations of a picture for consistency.
        settings: How keys are judged.
        baseline_image_size: Pixels a side for the packaged image encoder; None judges no baselines.
        consistency_requests: Test requests on which consistency is measured.
        latency_requests: Requests timed one by one.
        teachers: Judged on the source's captions beside the model, where it has any.
        against: Another export, judged on the captions beside the model.
    """
    requests = {split: source.requests(split) for split in ("calibration", "test")}
    labels = {split: Labels.of(found) for split, found in requests.items()}
    cal, test = labels["calibration"], labels["test"]
    found = Evaluation()
    found.records += oracle_records(test, source.name, settings)
    for (name, bits), keys in _methods(encoder, requests, method, baseline_image_size):
        judgement = judge(
            name,
            bits,
            keys["calibration"],
            cal,
            keys["test"],
            test,
            source.name,
            settings,
            disjoint_phrasings=source.disjoint_phrasings,
        )
        found.records += judgement.records
        if name in IDENTITIES:
            sheet = Sheet(source.name, "test", SINGLE_PASS, name, None)
            found.records += identity_records(sheet, keys["test"], test, settings)
        line = label((name, bits))
        found.curves.setdefault("p_chr", []).append(
            Curve(line, np.array(judgement.coverage), np.array(judgement.precision))
        )
        if name == method:
            _add_trained(found, judgement, encoder, bits, line, requests["test"], test)
    both = [r for r in requests["test"] if r.image is not None and r.text is not None]
    shuffled = [requests["test"][i] for i in np.random.default_rng(0).permutation(len(test))]
    found.records += consistency_records(
        encoder, shuffled[:consistency_requests], perturb, source.name, method
    )
    found.records += latency_records(encoder, both[:latency_requests], source.name, method)
    captions = source.captions("test") if isinstance(source, CaptionedSource) else []
    if captions:
        found.records += caption_records(encoder, captions, teachers, against, source.name, method)
    found.records += left_out_records(source, method)
    size = Sheet(source.name, "test", "all", method, None)
    found.records.append(size.figure("params", float(encoder.num_parameters), unit="count"))
    return found


def caption_records(
    encoder: KeyEncoder,
    captions: Sequence[Request],
    teachers: Sequence[Teacher],
    against: KeyEncoder | None,
    data: str,
    method: str,
) -> list[Record]:
    """Search photographs by their captions and back: the model, its teachers, another model.

    Args:
        encoder: The exported model.
        captions: Requests with a picture, a text that describes it and the picture's entity.
        teachers: Those with both modalities are searched too, each in its own space.
        against: Another export, of which the paired gain is told.
        data: Name of the data.
        method: Name of the model in the records.
    """
    first, picture_of = photographs(captions)
    pictures = [Request(image=captions[row].image) for row in first]
    distinct = {text: number for number, text in enumerate({str(r.text): 0 for r in captions})}
    texts = [Request(text=text) for text in distinct]
    text_of = np.array([distinct[str(r.text)] for r in captions])

    def of_model(model: KeyEncoder) -> CaptionVectors:
        image, text = model.encode_modalities(pictures)[0], model.encode_modalities(texts)[1]
        return CaptionVectors(image, text[text_of])

    mine = of_model(encoder)
    sheet = Sheet(data, "test", "all", method, None)
    records = recall_records(mine, picture_of, sheet)
    for teacher in teachers:
        image, text = teacher.encode(pictures)[0], teacher.encode(texts)[1]
        if image is None or text is None:
            continue
        name = f"teacher:{teacher.name}"
        theirs = CaptionVectors(image.numpy(), text.numpy()[text_of])
        records += recall_records(theirs, picture_of, replace(sheet, method=name))
        records += compared_records(mine, theirs, picture_of, sheet, name)
    if against is not None:
        other = f"{against.space.name}:{against.space.fingerprint}"  # a name may be the same
        theirs = of_model(against)
        records += recall_records(theirs, picture_of, replace(sheet, method=other))
        records.append(gain_record(mine, theirs, picture_of, sheet, other))
    return records


def photographs(captions: Sequence[Request]) -> tuple[list[int], Ints]:
    """Return the first request of each photograph [P], and the photograph of each request [C]."""
    first: dict[str | None, int] = {}
    for row, request in enumerate(captions):
        first.setdefault(request.entity, row)
    place = {entity: number for number, entity in enumerate(first)}
    return list(first.values()), np.array([place[request.entity] for request in captions])


def _methods(
    encoder: KeyEncoder, requests: dict[str, list[Request]], method: str, image_size: int | None
) -> Iterator[tuple[tuple[str, int | None], dict[str, Rows]]]:
    """Yield (method, bits) and its unit rows of each split, one method at a time."""
    encoded = {split: encode(encoder, found, split) for split, found in requests.items()}
    yield (method, None), {split: vectors for split, (vectors, _) in encoded.items()}
    for bits in sorted(encoder.code_lengths, reverse=True):
        yield (method, bits), {split: signs(codes, bits) for split, (_, codes) in encoded.items()}
    if image_size is None:
        return
    for name in (*IDENTITIES, "perceptual_hash"):
        rows = getattr(baselines, name)
        yield (name, None), {split: rows(found) for split, found in requests.items()}
    images = baselines.Lite0Features(image_size=image_size)
    texts = baselines.MiniLMText()
    concatenated = {
        split: baselines.concat_l2(found, images, texts) for split, found in requests.items()
    }
    yield ("concat_l2", None), concatenated
    pixels = {
        split: baselines.unit_rows(rows[:, : images.dim]) for split, rows in concatenated.items()
    }
    pictured = np.linalg.norm(pixels["calibration"], axis=1) > 0
    if not pictured.any():
        return
    mean = pixels["calibration"][pictured].mean(0)
    centred = {
        split: baselines.unit_rows(np.where(rows.any(1, keepdims=True), rows - mean, mean))
        for split, rows in pixels.items()
    }
    yield ("teacher:efficientnet_lite0", None), centred


def encode(
    encoder: KeyEncoder, requests: Sequence[Request], split: str
) -> tuple[Rows, NDArray[np.uint8]]:
    """Return vectors [N, D] and codes [N, K/8] of a split's requests."""
    parts = [
        encoder.encode_arrays(requests[first : first + CHUNK])[:2]
        for first in progress_bar(
            range(0, len(requests), CHUNK), desc=f"keys of {split}", unit_scale=CHUNK
        )
    ]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def signs(codes: NDArray[np.uint8], bits: int) -> Rows:
    """Codes [N, K/8] as unit rows whose inner product is 1 - 2 * Hamming distance / bits."""
    signs = np.unpackbits(codes[:, : bits // 8], axis=1).astype(np.float32) * 2 - 1
    return signs / np.float32(bits**0.5)


def _add_trained(
    found: Evaluation,
    judgement: Judgement,
    encoder: KeyEncoder,
    bits: int | None,
    line: str,
    requests: Sequence[Request],
    labels: Labels,
) -> None:
    """Add what is kept of the model itself: thresholds, replay curve, worst mistakes."""
    present = labels.modalities[with_both(labels)]  # both thresholds are fitted on these
    for threshold in judgement.thresholds:
        if threshold.value is not None:
            mark = encoder.space.fingerprint
            found.thresholds.append(stored(threshold, str(present[0]), bits, mark))
    replayed = judgement.replay_curve
    if replayed is not None:
        curves = found.curves.setdefault("closed_loop", [])
        visits = np.array(replayed.visits)
        if not curves:
            curves.append(Curve("oracle", visits, np.array(replayed.oracle)))
        curves.append(Curve(line, visits, np.array(replayed.hits)))
    if bits is not None:
        return
    for pairs, missed in ((judgement.worst_false_hits, False), (judgement.worst_misses, True)):
        for query, other, similarity in pairs[:PAIRS_SHOWN]:
            asked, served = requests[query], requests[other]
            kinds = count_kinds(labels, np.array([query]), np.array([other]))
            kind = MISS if missed else next(k for k, count in kinds.items() if count)
            found.pairs.append(
                Pair(
                    _bytes(asked), asked.text, asked.response,
                    _bytes(served), served.text, served.response,
                    similarity, kind,
                )
            )  # fmt: skip


def _bytes(request: Request) -> bytes | None:
    if isinstance(request.image, str | Path):
        return Path(request.image).read_bytes()
    return request.image if isinstance(request.image, bytes) else None
