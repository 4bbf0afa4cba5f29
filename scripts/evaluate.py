"""Judge an export on a data source: python -m scripts.evaluate export=PATH data=easy_vqa"""

import sys
from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from data.held_out import HeldOut
from data.perturbed import perturbed
from keynet.evaluation.evaluate import evaluate
from keynet.evaluation.output import write_evaluation
from keynet.export.loader import load_key_model
from keynet.training.config import explained


def run(cfg: DictConfig) -> None:
    """Load, evaluate, report."""
    encoder = load_key_model(cfg.export)
    exports = [export for export in (cfg.export, cfg.against) if export is not None]
    source = HeldOut(instantiate(cfg.data.source), *exports)
    options = instantiate(cfg.evaluation, _convert_="all")
    options |= {"method": encoder.space.name, "perturb": perturbed}
    if cfg.distill:
        options["teachers"] = list(instantiate(cfg.distill.teachers, _convert_="all").values())
    if cfg.against is not None:
        options["against"] = load_key_model(cfg.against)
    found = evaluate(encoder, source, **options)
    folder = Path(cfg.out)
    folder.mkdir(parents=True, exist_ok=True)
    write_evaluation(found, folder, " ".join(["python", *sys.argv]), source.attribution)


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    explained(main)
