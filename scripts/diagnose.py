"""How alike two spaces are, and what maps between them: python -m scripts.diagnose data=flickr8k

Affine maps and a linear bridge between the packaged encoders of pictures and texts, fitted on the
captions of the training split, and an export's own vectors (export=RUN/export), on the captioned
pictures of the test split: recall, distances, distortions, and a t-SNE picture.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import hydra
import numpy as np
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from aligners.affine import FITS, AffineMap
from data.datamodule import number_samples
from data.held_out import HeldOut
from data.requests import CaptionedSource, Source
from distill.bridge import BridgeTeacher
from distill.store import CHUNK, Store, encode_samples, samples_digest, store_folder
from distill.teacher import Teacher, TeacherError
from keynet.evaluation.captions import CaptionVectors, recall_records
from keynet.evaluation.evaluate import photographs
from keynet.evaluation.grid_table import print_grid
from keynet.evaluation.isometry import PairedVectors, isometry_records
from keynet.evaluation.isometry_page import isometry_grid, write_isometry_page
from keynet.evaluation.left_out import left_out_lines, left_out_records
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.report import write_report
from keynet.evaluation.tsne import LEAST_POINTS, tsne_png
from keynet.export.loader import load_key_model
from keynet.progress import progress_bar
from keynet.training.config import explained
from keynet.types import Request, Samples

UNALIGNED = "unaligned"
# The best of 0, 0.01, 0.1, 1 and 3 on the development photographs of Flickr8k.
OPTIONS = {"least_squares": {"ridge": 1.0}}


def run(cfg: DictConfig) -> None:
    """Embed, fit, measure, draw."""
    _check_options(cfg)
    source = instantiate(cfg.data.source)
    if cfg.export is not None:
        source = HeldOut(source, cfg.export)
    captions = source.captions("test") if isinstance(source, CaptionedSource) else []
    if not captions:
        raise ValueError(f"data {source.name} has no captions to diagnose; choose data=flickr8k")
    first, picture_of = photographs(captions)
    if len(first) < LEAST_POINTS:
        raise ValueError(
            f"data {source.name} has too few photographs with captions of their own: {len(first)} "
            f"in its test split, t-SNE needs {LEAST_POINTS}; choose data=flickr8k"
        )
    bridge = _bridge(cfg)
    export = None if cfg.export is None else load_key_model(cfg.export)
    pictures = [Request(image=captions[row].image) for row in first]
    texts = [Request(text=request.text) for request in captions]
    image, text = bridge.image.encode(pictures).image, bridge.text.encode(texts).text
    if image is None or text is None:
        raise TeacherError(f"the parts of {bridge.name} do not embed both pictures and texts")

    training = _training_pairs(cfg, source, bridge)
    fitted = (
        f"Fitted on {len(training.pairs):,} of {training.known:,} pairs of a training picture and "
        "its caption."
    )
    print(fitted)
    if not bridge.trained:
        bridge.fit(*training[:3])
    units = F.normalize(image, dim=-1), F.normalize(text, dim=-1)
    spaces = {UNALIGNED: units} | _mapped(training, *units)
    spaces[f"teacher:{bridge.name}"] = (
        bridge.project("image", image), bridge.project("text", text)
    )  # fmt: skip
    vectors = {
        name: CaptionVectors(*(rows.numpy() for rows in pair)) for name, pair in spaces.items()
    }
    if export is not None:
        vectors[export.space.name] = CaptionVectors(
            export.encode_modalities(pictures)[0], export.encode_modalities(texts)[1]
        )

    paired = {name: PairedVectors(v.image, v.text[first]) for name, v in vectors.items()}
    records: list[Record] = []
    for name, found in vectors.items():
        sheet = Sheet(source.name, "test", "all", name, None)
        records += _recalls(found, picture_of, sheet)
        # An export does not hold what its encoders gave before the alignment.
        before = paired[UNALIGNED] if name in spaces and name != UNALIGNED else None
        records += isometry_records(paired[name], sheet, before, seed=cfg.seed)
    folder, command = Path(cfg.out), " ".join(["python", *sys.argv])
    folder.mkdir(parents=True, exist_ok=True)
    grid, picture = isometry_grid(records), tsne_png(paired, seed=cfg.seed)
    left_out = [] if export is None else left_out_records(source, export.space.name)
    write_report(folder / "report.json", [*records, *left_out], command)
    notes = [fitted, *left_out_lines(left_out), *source.attribution]
    write_isometry_page(folder / "report.html", grid, picture, notes, command)
    print_grid(grid)
    print("\n".join([*notes, "", f"report: {folder / 'report.html'}"]))


def _check_options(cfg: DictConfig) -> None:
    """Raise ValueError where an option of this command has another type, or is out of range."""
    if type(cfg.pairs) is not int:
        raise ValueError(f"pairs={cfg.pairs}: expected a whole number")
    if type(cfg.seed) is not int or not 0 <= cfg.seed < 2**32:
        raise ValueError(f"seed={cfg.seed}: expected a whole number from 0 to {2**32 - 1}")
    for name in ("export", "distill.store", "out"):
        value = OmegaConf.select(cfg, name)
        if not isinstance(value, str) and (value is not None or name == "out"):
            raise ValueError(f"{name}={value}: expected a path, such as {name}=./{value}")


def _bridge(cfg: DictConfig) -> BridgeTeacher:
    node = OmegaConf.select(cfg, "distill.teachers.bridge")
    if node is None:
        raise TeacherError("no encoders to map between: give distill=packaged, or another bridge")
    bridge: BridgeTeacher = instantiate(node)
    if cfg.pairs < _least_pairs(bridge):
        least = _least_pairs(bridge)
        raise ValueError(f"pairs={cfg.pairs}: maps of these encoders need at least pairs={least}")
    return bridge


def _least_pairs(bridge: BridgeTeacher) -> int:
    """Return what procrustes needs for one answer, the most of any fit here."""
    return min(bridge.image.dim, bridge.text.dim) + 1


def _recalls(vectors: CaptionVectors, picture_of: np.ndarray, sheet: Sheet) -> list[Record]:
    if vectors.image.shape[1] == vectors.text.shape[1]:
        return recall_records(vectors, picture_of, sheet)
    note = "photographs and texts are in no common space"
    return [
        replace(sheet, subset="text_to_image").figure(f"recall_at_{k}", None, note=note)
        for k in (1, 10)
    ]


class _Training(NamedTuple):
    """Embeddings of pictures [P, D1] and texts [V, D2], and which belong together."""

    image: Tensor
    text: Tensor
    pairs: Tensor  # int64 [N, 2], row of the picture and of its caption
    known: int  # pairs that there are


def _training_pairs(cfg: DictConfig, source: Source, bridge: BridgeTeacher) -> _Training:
    samples = number_samples(source, source.requests("train"))
    if not len(samples.pairs):
        raise ValueError(f"data {source.name} has no captions of training pictures to fit a map on")
    least = _least_pairs(bridge)
    if len(samples.pairs) < least:
        raise ValueError(
            f"data {source.name} has {len(samples.pairs)} pairs of a training picture and its "
            f"caption, maps of these encoders need at least {least}; choose data=flickr8k"
        )
    order = torch.randperm(len(samples.pairs), generator=torch.Generator().manual_seed(cfg.seed))
    chosen = samples.pairs[order[: cfg.pairs]]
    data = samples_digest(samples)
    (pictures, picture_of), (texts, text_of) = (
        column.unique(return_inverse=True) for column in chosen.T
    )
    return _Training(
        _rows(cfg.distill.store, bridge.image, samples, data, "image", pictures),
        _rows(cfg.distill.store, bridge.text, samples, data, "text", texts),
        torch.stack([picture_of, text_of], 1),
        len(samples.pairs),
    )


def _mapped(training: _Training, image: Tensor, text: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Photographs in the space of the texts, by each way to fit a map."""
    a = F.normalize(training.image, dim=-1)[training.pairs[:, 0]]
    b = F.normalize(training.text, dim=-1)[training.pairs[:, 1]]
    found = {}
    for method in FITS:
        affine = AffineMap(in_dim=a.shape[1], out_dim=b.shape[1])
        affine.fit(a, b, method, **OPTIONS.get(method, {}))
        with torch.no_grad():
            found[f"affine:{method}"] = (affine(image), text)
    return found


def _rows(
    store: str | None, teacher: Teacher, samples: Samples, data: str, modality: str, ids: Tensor
) -> Tensor:
    """Embeddings of some samples: from the store where one was made of them, else encoded."""
    if store is not None:
        folder = store_folder(store, teacher, data)
        if folder.exists():
            return Store(folder, teacher, samples, data).rows(modality, ids)
    chunks: Sequence[Tensor] = progress_bar(
        ids.split(CHUNK), desc=f"embeddings of {teacher.name}", unit="chunk"
    )
    return torch.cat([encode_samples(teacher, samples, modality, c.tolist()) for c in chunks])


@hydra.main(version_base="1.3", config_path="../conf", config_name="diagnose")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    explained(main)
