"""Which teachers, objectives and weightings help: python -m scripts.ablate data=emoji

Small students over the frozen image trunk, whose features are stored once; three seeds a row;
judged on held-out pictures of the training split, never on the test split. Stopped, it goes on with
the rows that are missing. Any option of training may follow: steps=200.
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import numpy as np
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import Tensor

from data.datamodule import RequestBatches, RequestDataModule
from data.requests import CaptionedSource
from data.sampler import HardNegativeBatchSampler
from keynet.evaluation.captions import CaptionVectors, ranks
from keynet.evaluation.cuts import cut
from keynet.evaluation.evaluate import photographs
from keynet.evaluation.fixed_store import chr_curve, serve
from keynet.evaluation.labels import Labels
from keynet.training.config import explained, register
from keynet.training.progress import quiet
from keynet.types import KeyOutput, Request

SEEDS = (0, 1, 2)
STUDENT = [
    "encoder=tiny", "encoder.text.width=128", "encoder.text.depth=2",
    "encoder.image.frozen_blocks=8", "aligner.dropout=0.3", "data.source.fold=dev", "steps=100",
    "batch_size=240",
]  # fmt: skip
ONE = "distill/objectives=feature"  # a teacher of one modality has no similarities between both
ROWS = {
    "no teacher": ["distill=none"],
    "lite0": [ONE, "~distill.teachers.minilm", "~distill.teachers.bridge"],
    "minilm": [ONE, "~distill.teachers.lite0", "~distill.teachers.bridge"],
    "bridge": ["~distill.teachers.lite0", "~distill.teachers.minilm"],
    "all, uniform": [],
    "all, affinity alone": ["distill/objectives=affinity"],
    "all, feature alone": ["distill/objectives=feature"],
    "all, by precision": ["distill/weighting=precision"],
    "all, by rank of precision": ["distill/weighting=precision", "distill.weighting.by=rank"],
    "all, by dispersion": ["distill/weighting=dispersion"],
    "all, keep the worst": ["distill/weighting=keep_worst"],
    "all, running standardiser": ["distill.standardise=running"],
}
CAPTIONED_ROWS = {"all, and text contrast": ["distill/objectives=with_captions"]}
CHUNK = 240
log = logging.getLogger("ablate")


class Bench:
    """One data set, its stored image features, and the requests to judge by."""

    def __init__(self, cfg: DictConfig) -> None:
        self.data: RequestDataModule = instantiate(cfg.data)
        source = self.data.source
        stem = instantiate(cfg.encoder.image).stem
        self.train = self._stored(self.data.requests, stem)
        self.test = self._stored(source.requests("test"), stem)
        captioned = isinstance(source, CaptionedSource)
        self.captions = self._stored(source.captions("test") if captioned else [], stem)
        self.labels = Labels.of(self.test.requests)
        self.disjoint = source.disjoint_phrasings

    def _stored(self, requests: list[Request], stem: Callable[[Tensor], Tensor]) -> RequestBatches:
        return RequestBatches(requests, self.data.preprocessor, stem)

    def run(self, cfg: DictConfig) -> dict[str, float]:
        """Train one student and judge it."""
        pl.seed_everything(cfg.seed, workers=True, verbose=False)
        distillation = instantiate(cfg.distill)
        module = instantiate(cfg.module)(
            model=instantiate(cfg.model), losses=instantiate(cfg.loss), distillation=distillation
        )
        if distillation:
            distillation.attach(self.data.samples, "cpu", torch.float32)
        sampler = HardNegativeBatchSampler(
            self.train.requests, batch_size=cfg.batch_size, batches=cfg.steps, seed=cfg.seed
        )
        loader = torch.utils.data.DataLoader(self.train, sampler=sampler, batch_size=None)
        trainer = instantiate(
            cfg.trainer,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(module, loader)
        return self._judge(module.model.eval())

    @torch.no_grad()
    def _judge(self, model: torch.nn.Module) -> dict[str, float]:
        keys = torch.cat([output.key for output in _outputs(model, self.test)]).numpy()
        served = serve(keys, self.labels, cut(self.labels, "all", disjoint_phrasings=self.disjoint))
        coverage, precision = chr_curve(served)
        found = {"p_chr_auc": float((np.diff(coverage, prepend=0.0) * precision).sum())}
        if self.captions.requests:
            outputs = _outputs(model, self.captions)
            first, picture_of = photographs(self.captions.requests)
            image = torch.cat([output.image for output in outputs])[first]
            text = torch.cat([output.text for output in outputs])
            to_image, _ = ranks(CaptionVectors(image.numpy(), text.numpy()), picture_of)
            found["recall_at_10"] = float((to_image <= 10).mean())
        return found


def _outputs(model: torch.nn.Module, batches: RequestBatches) -> list[KeyOutput]:
    rows = range(len(batches.requests))
    chunks = [rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK)]
    return [model(*batches[chunk][:6]) for chunk in chunks]


def main() -> None:
    """Run what is missing and print the table."""
    register()
    quiet()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    given = sys.argv[1:]
    conf = Path(__file__).parents[1] / "conf"
    with initialize_config_dir(str(conf), version_base="1.3"):

        def composed(row: list[str], seed: int) -> DictConfig:
            alone = row == ["distill=none"]
            chosen = any(o.startswith("distill=") for o in given)
            teachers = [] if alone or chosen else ["distill=packaged"]
            options = [o for o in given if not (alone and o.lstrip("+~").startswith("distill"))]
            return compose("train", [*STUDENT, *teachers, *options, *row, f"seed={seed}"])

        base = composed(ROWS["no teacher"], 0)
        bench = Bench(base)
        name = bench.data.source.name
        rows = ROWS | (CAPTIONED_ROWS if bench.train.described.any() else {})
        folder = Path("outputs/ablation") / name
        folder.mkdir(parents=True, exist_ok=True)
        results = folder / "results.jsonl"
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        known = {(d["row"], d["config"]): d["found"] for d in map(json.loads, lines)}
        found: dict[str, list[dict[str, float]]] = {row: [] for row in rows}
        for number, (row, seed) in enumerate((row, seed) for row in rows for seed in SEEDS):
            cfg = composed(rows[row], seed)
            kept = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "run_dir"])
            config = OmegaConf.to_yaml(kept)
            if (row, config) not in known:
                known[row, config] = bench.run(cfg)
                line = {"row": row, "config": config, "found": known[row, config]}
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            found[row].append(known[row, config])
            count = len(rows) * len(SEEDS)
            log.info("%d of %d: %s, seed %d: %s", number + 1, count, row, seed, found[row][-1])
    table = Table(title=f"{name}: mean of {len(SEEDS)} seeds (least to greatest)")
    metrics = list(found["no teacher"][0])
    for column in ("row", *metrics):
        table.add_column(column)
    for row, runs in found.items():
        values = [[run[metric] for run in runs] for metric in metrics]
        table.add_row(row, *(f"{mean(v):.3f} ({min(v):.3f} to {max(v):.3f})" for v in values))
    Console().print(table)
    print(f"results: {results}")


if __name__ == "__main__":
    explained(main)
