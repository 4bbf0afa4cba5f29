"""Measure speed: python -m scripts.bench latency, or: python -m scripts.bench teachers data=emoji

``latency``: exports, or key models with random weights, beside open_clip models with random
weights, in one process; the time of the models alone, no decoding and no tokenising for any.
``teachers``: what stored teacher embeddings cost a training step, and what asking would cost;
takes the overrides of train.py. ``hash``: hashing of keys and search of codes (bench_hash.py).
``index``: the cache's index of codes (bench_index.py). ``cache``: the whole cache but its key
model (bench_cache.py). ``policies``: hit rates and speed of replacement policies
(bench_policies.py).
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytorch_lightning as pl
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig

from data.datamodule import RequestDataModule
from distill.bridge import BridgeTeacher
from distill.distillation import Distillation
from distill.store import Store, samples_digest, store_folder
from distill.targets import OnlineTargets
from distill.teacher import Teacher, TeacherError
from keynet.evaluation.bench import bench_records, bench_table, busy, measure
from keynet.evaluation.peers import (
    Encoder,
    exported_encoder,
    key_encoder,
    open_clip_encoder,
)
from keynet.evaluation.report import write_report
from keynet.evaluation.teacher_cost import (
    WARM_UP,
    Sources,
    TeacherCost,
    cost_records,
    cost_table,
)
from keynet.training.config import explained, register
from keynet.training.progress import quiet
from scripts import bench_cache, bench_hash, bench_index, bench_policies

CONF = Path(__file__).parents[1] / "conf"
STUDENTS = ("keynet_tiny", "keynet_small")
PEERS = ("ViT-L-14", "ViT-B-32", "MobileCLIP2-S0")


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, file=sys.stderr, flush=True)


def configuration(overrides: Sequence[str]) -> DictConfig:
    """Return the composed configuration of train.py."""
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def encoders(args: argparse.Namespace) -> Iterator[Encoder]:
    """Make the students, then the peers."""
    for entry in args.export:
        name, found, path = entry.partition("=")
        if not (name and found and path):
            raise ValueError(f"--export {entry}: expected NAME=PATH, such as mine=outputs/x/export")
        say(f"loading {path}")
        yield exported_encoder(name, path, args.tokens)
    students = args.student if args.student or args.export else STUDENTS
    for experiment in students:
        cfg = configuration([f"experiment={experiment}"])
        for tower in (cfg.encoder.image, cfg.encoder.text):
            if "pretrained" in tower:
                tower.pretrained = False
        for size in args.image_size:
            say(f"tracing {experiment} at {size} px")
            yield key_encoder(f"{experiment}@{size}", instantiate(cfg.model), size, args.tokens)
    for peer in args.peer:
        say(f"tracing {peer}")
        yield open_clip_encoder(peer)


def latency(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    if len(args.rounds) not in (1, len(args.batch)):
        raise ValueError(
            f"{len(args.rounds)} numbers after --rounds and {len(args.batch)} after --batch: "
            "give one number of rounds for all, or one for each batch size"
        )
    remark = busy(os.getloadavg()[0])
    if remark:
        say(f"{remark}: figures of several threads will not hold; let other work end first")
    many = args.rounds * len(args.batch) if len(args.rounds) == 1 else args.rounds
    rounds = dict(zip(args.batch, many, strict=True))
    found = list(encoders(args))
    times = measure(found, rounds, args.threads, args.budget, say)
    records = bench_records(found, args.peer, times, remark)
    write(args, records)
    print(bench_table(records))
    print("Medians of image and text together; decoding and tokenising are left out for all.")
    print(f"Weights are random but for exports.\nreport: {args.out / 'report.json'}")


def sources(distillation: Distillation, data: RequestDataModule) -> Sources:
    """Open the stores that training reads, and the teachers that they stand for."""
    digest = samples_digest(data.samples)
    used = [part for teacher in distillation.teachers for part in parts(teacher)]
    networks = {teacher.fingerprint: teacher for _, teacher in used}
    folders = {
        mark: store_folder(distillation.store, teacher, digest)
        for mark, teacher in networks.items()
    }
    stores = {
        mark: Store(folders[mark], teacher, data.samples, digest)
        for mark, teacher in networks.items()
    }
    counts = {"image": len(data.samples.pictures), "text": len(data.samples.texts)}
    asked = {
        (modality, teacher.fingerprint): (modality, OnlineTargets(teacher, data.samples))
        for modality, teacher in used
    }
    return Sources(
        stored=[(modality, stores[teacher.fingerprint]) for modality, teacher in used],
        asked=list(asked.values()),
        values=sum(t.dim * sum(counts[m] for m in t.modalities) for t in networks.values()),
        bytes=sum(
            file.stat().st_size
            for folder in folders.values()
            for file in folder.glob("*.safetensors")
        ),
    )


def parts(teacher: Teacher, modalities: Sequence[str] | None = None) -> Iterator[tuple]:
    """Return each modality with the network behind it, those of a bridge for the bridge."""
    if isinstance(teacher, BridgeTeacher):
        yield from parts(teacher.image, ("image",))
        yield from parts(teacher.text, ("text",))
    else:
        for modality in modalities or teacher.modalities:
            yield modality, teacher


def teachers(args: argparse.Namespace) -> None:
    """Train a few steps, print, write."""
    chosen = any(o.startswith(("distill=", "experiment=")) for o in args.overrides)
    cfg = configuration([*([] if chosen else ["distill=packaged"]), *args.overrides])
    pl.seed_everything(cfg.seed, workers=True)
    distillation = instantiate(cfg.distill)
    if not distillation or distillation.store is None:
        raise TeacherError(
            "no stored teachers to measure: give distill=packaged or distill=hub, and a store"
        )
    quiet()
    data = instantiate(cfg.data)
    module = instantiate(cfg.module)(
        model=instantiate(cfg.model), losses=instantiate(cfg.loss), distillation=distillation
    )
    cost = TeacherCost(lambda: sources(distillation, data), args.steps, say)
    trainer = instantiate(
        cfg.trainer,
        max_steps=args.steps + WARM_UP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[cost],
    )
    trainer.fit(module, datamodule=data)
    names = "+".join(teacher.name for teacher in distillation.teachers)
    records = cost_records(cost, data.source.name, names, data.batches_per_epoch)
    write(args, records)
    print(cost_table(records, data.batches_per_epoch, data.batch_size))
    print(f"Teachers {names}; medians of {args.steps} steps; each network asked once a step.")
    print(f"report: {args.out / 'report.json'}")


def write(args: argparse.Namespace, records: Sequence) -> None:
    """Write report.json."""
    write_report(args.out / "report.json", records, " ".join(["python", *sys.argv]))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    whole = argparse.ArgumentParser(prog="python -m scripts.bench")
    commands = whole.add_subparsers(dest="command", required=True)
    one = commands.add_parser("latency", help="encoders beside open_clip models")
    one.set_defaults(run=latency)
    one.add_argument("--export", action="append", default=[], metavar="NAME=PATH")
    one.add_argument(
        "--student", nargs="*", default=[], metavar="EXPERIMENT",
        help=f"experiments of conf/, random weights; without an export: {' '.join(STUDENTS)}",
    )  # fmt: skip
    one.add_argument("--image-size", nargs="+", type=int, default=[160], help="of students")
    one.add_argument("--peer", nargs="*", default=PEERS, help="names that open_clip knows")
    one.add_argument(
        "--tokens", type=int, default=80,
        help="length of texts of exports and students; 80 is what peers pad every text to (77)",
    )  # fmt: skip
    one.add_argument("--batch", nargs="+", type=int, default=[1, 64])
    one.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    one.add_argument("--rounds", nargs="+", type=int, default=[5], help="one, or one a batch size")
    one.add_argument(
        "--budget", type=float, default=120.0,
        help="seconds after which a model is not run again, but at least twice, at one batch size",
    )  # fmt: skip
    one.add_argument("--out", type=Path, default=Path("outputs/bench/latency"))
    two = commands.add_parser("teachers", help="stored teacher embeddings in a training step")
    two.set_defaults(run=teachers)
    two.add_argument("--steps", type=int, default=10)
    two.add_argument("--out", type=Path, default=Path("outputs/bench/teachers"))
    two.add_argument("overrides", nargs="*", help="as of train.py; default distill=packaged")
    bench_hash.add(commands)
    bench_index.add(commands)
    bench_cache.add(commands)
    bench_policies.add(commands)
    return whole


def main() -> None:
    """Parse and run."""
    args = parser().parse_args()
    args.run(args)


if __name__ == "__main__":
    explained(main)
