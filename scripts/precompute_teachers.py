"""Store teacher embeddings: python -m scripts.precompute_teachers data=emoji distill=hub

Training does it by itself when something is missing; here without training, and over several
processes: torchrun --standalone --nproc-per-node=2 -m scripts.precompute_teachers ...
"""

import os

import hydra
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from distill.bridge import BridgeTeacher
from distill.store import Store, samples_digest, store_folder, torchrun_rank, write_store
from distill.teacher import Teacher, TeacherError
from keynet.training.config import explained, register

register()


def run(cfg: DictConfig) -> None:
    """Write each teacher's rows, then say where they are."""
    distillation = instantiate(cfg.distill)
    if not distillation or distillation.store is None:
        raise TeacherError(
            "no teachers to store: give distill=packaged or distill=hub, and a store"
        )
    samples = instantiate(cfg.data).samples
    data = samples_digest(samples)
    rank, world = torchrun_rank()
    device = (
        f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if cfg.trainer.accelerator == "gpu" else "cpu"
    )
    half = str(cfg.trainer.precision).startswith("bf16")
    networks: dict[str, Teacher] = {}
    for teacher in distillation.teachers:
        parts = (teacher.image, teacher.text) if isinstance(teacher, BridgeTeacher) else (teacher,)
        networks.update({part.fingerprint: part for part in parts})
    for teacher in networks.values():
        teacher.to(device, torch.bfloat16 if half else torch.float32)
        folder = store_folder(distillation.store, teacher, data)
        write_store(folder, teacher, samples, data, rank=rank, world=world)
        if world == 1:
            Store(folder, teacher, samples, data)
        print(f"{teacher.name}: {folder}")


@hydra.main(version_base="1.3", config_path="../conf", config_name="train")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    explained(main)
