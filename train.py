"""Train, export and judge a key model: python train.py experiment=demo"""

import importlib.util
import logging
import sys
from pathlib import Path

if importlib.util.find_spec("hydra") is None:
    sys.exit("error: training needs more packages: pip install 'keynet-cache[demo]'")

import hydra
import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import ModelCheckpoint

from data.held_out import HeldOut
from data.perturbed import perturbed
from keynet.evaluation.baselines import require_packages
from keynet.evaluation.evaluate import evaluate
from keynet.evaluation.output import write_evaluation
from keynet.export.loader import load_key_model
from keynet.training.config import explained, known_options, register
from keynet.training.fit import fit
from keynet.training.logs import log_report, loggers
from keynet.training.progress import Progress, quiet
from keynet.training.run import epochs, open_run, point_latest

register()
GOLDEN_REQUESTS = 8
log = logging.getLogger("train")


def run(cfg: DictConfig) -> None:
    """Fit (or go on fitting), export, evaluate, report."""
    folder = Path(HydraConfig.get().runtime.output_dir)  # run_dir, as Hydra resolved it
    config = known_options(OmegaConf.to_container(cfg, resolve=True))
    max_epochs, checkpoint = epochs(cfg.steps, cfg.steps_per_checkpoint), open_run(folder, config)
    log.info("run directory %s; stopped, it goes on with run_dir=%s", folder, folder)
    pl.seed_everything(cfg.seed, workers=True)
    options = instantiate(cfg.evaluation, _convert_="all")
    require_packages(options["baseline_image_size"])
    export_key_model = instantiate(cfg.export)
    parts = dict(model=cfg.model, losses=cfg.loss, distillation=cfg.distill, augment=cfg.augment)
    module = instantiate(cfg.module)(**{name: instantiate(part) for name, part in parts.items()})
    data = instantiate(cfg.data)
    last = ModelCheckpoint(folder / "checkpoints", "last", enable_version_counter=False)
    trainer = instantiate(
        cfg.trainer,
        max_epochs=max_epochs,
        default_root_dir=folder,
        logger=loggers(config["logger"], folder, config),
        callbacks=[last, Progress()],
        log_every_n_steps=10,
    )
    trained_on = fit(trainer, module, data, checkpoint, folder)
    if not trainer.is_global_zero:  # what is trained is on all ranks, and one suffices
        return
    source, export = data.source, folder / "export"
    golden = data.requests[:: max(1, len(data.requests) // GOLDEN_REQUESTS)]
    told = {"attribution": source.attribution, "trained_on": trained_on}
    export_key_model(module.model, data.preprocessor, export, cfg.name, 1, golden, **told)
    judged = {"method": cfg.name, "perturb": perturbed, "teachers": module.teachers}
    found = evaluate(load_key_model(export), HeldOut(source, export), **judged, **options)
    write_evaluation(found, folder, " ".join(["python", *sys.argv]), source.attribution, export)
    log_report(trainer.loggers, found.records, folder)
    point_latest(folder)


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    quiet()
    run(cfg)


if __name__ == "__main__":
    explained(main)
