"""What scripts.hashes and scripts.modality_drift share: stored embeddings, and the joint hash."""

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import Tensor

from data.datamodule import number_samples
from data.requests import Source, Split, image_identity
from data.sampler import HardNegativeBatchSampler
from distill.store import Store, encode_samples, samples_digest, store_folder, write_store
from distill.teacher import Teacher, TeacherError
from keynet.evaluation.hash_baselines import BATCH
from keynet.evaluation.joint_hash import JointHash, fit_joint_hash
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Record
from keynet.evaluation.report import write_report
from keynet.training.config import register
from keynet.types import Request, Samples

CONF = Path(__file__).parents[1] / "conf"
EPOCHS = 20  # of the joint hash and of OrthoHash alike
LEARNING_RATE = 1e-2  # best of 1e-3, 3e-3 and 1e-2 for both on emoji's calibration split
LEAST_ROWS = 8  # of a training batch
WIDTH = 180
NO_PAIRS = torch.zeros(0, 2, dtype=torch.int64)  # of pictures and captions
# What these commands read of train.py's configuration; all else would change nothing.
READ = r"~?(data|distill)(=.*)?|[~+]*(data\.source|distill\.(store|teachers))\b.*"
READ_LOSS = r"loss\.\w+\.(weight|loss\.temperature)=.*"


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
        store = OmegaConf.select(cfg, "distill.store")
        if store is None:
            raise TeacherError("embeddings are stored: give distill=packaged_quick, and a store")
        if not isinstance(store, str):
            raise TeacherError(f"distill.store={store}: expected a folder, as in ./{store}")
        for name in ("lite0", "minilm"):
            if OmegaConf.select(cfg, f"distill.teachers.{name}") is None:
                raise TeacherError(
                    f"the teacher {name} is left out, whose embeddings the hashes are of; take "
                    "distill=packaged_quick as it is"
                )
        self.root = Path(store)
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


def trained_on(encoders: Encoders, source: Source, rows: int) -> Embedded:
    """Return up to ``rows`` requests of the training split, drawn at random."""
    train = encoders.split(source, "train")
    drawn = np.random.default_rng(0).permutation(len(train))[:rows]
    return train.take(np.sort(drawn))


def configuration(overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of train.py with the packaged encoders and the joint losses.

    Raises:
        ValueError: For an option that would change nothing, or a weight that is no number.
    """
    for override in overrides:
        if not re.fullmatch(f"{READ}|{READ_LOSS}", override):
            raise ValueError(
                f"{override}: nothing here reads it; expected data=, data.source., distill=, "
                "distill.store=, distill.teachers., loss.NAME.weight= or "
                "loss.NAME.loss.temperature=, of the losses of loss=joint_hash"
            )
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", ["distill=packaged_quick", "loss=joint_hash", *overrides])
    for name, entry in cfg.loss.items():
        if type(entry.weight) not in (int, float):
            raise ValueError(f"loss.{name}.weight={entry.weight}: expected a number")
    return cfg


def whole(least: int) -> Callable[[str], int]:
    """Return what reads a whole number from ``least`` to 2^31 - 1 off the command line."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?\d+", text) or not least <= int(text) < 2**31:
            raise argparse.ArgumentTypeError(
                f"{text} is no whole number from {least} to {2**31 - 1}"
            )
        return int(text)

    return read


def parser(program: str, description: str, out: str) -> argparse.ArgumentParser:
    """Return the command line that both share."""
    found = argparse.ArgumentParser(prog=f"python -m scripts.{program}", description=description)
    found.add_argument(
        "--rows", type=whole(LEAST_ROWS), default=20_000, help="training requests at most"
    )
    found.add_argument("--out", type=Path, help=f"by default {out}/DATA")
    found.add_argument(
        "overrides", nargs="*", metavar="OPTION", help="of train.py: data, distill, loss.NAME"
    )
    return found


def report_folder(out: Path) -> Path:
    """Make the folder of the report, before the training rather than after.

    Raises:
        ValueError: When nothing can be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise ValueError(
            f"--out {out}: nothing can be written there ({error.strerror}); give another folder"
        ) from error
    return out


def tell(out: Path, records: Sequence[Record], table: Table) -> None:
    """Write the report and print the table."""
    write_report(out / "report.json", records, " ".join(["python", *sys.argv]))
    console = Console()
    if not console.is_terminal:  # rich takes a pipe for 80 columns wide
        console.width = max(console.width, WIDTH)
    console.print(table)
    print(f"report: {out / 'report.json'}")
