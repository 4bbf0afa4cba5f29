"""Where a training's figures go: metrics.csv always, and Weights & Biases where asked for."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger, WandbLogger

from keynet.evaluation.records import Record

MODES = ("offline", "online")
ID = "wandb_id"  # in the run directory: a run that goes on logs on, and no other


def loggers(settings: Mapping[str, Any] | None, run: Path, config: Any) -> list[Logger]:
    """Return the loggers of a run; one that goes on logs on.

    Args:
        settings: ``project``, ``mode`` and ``entity`` of Weights & Biases; empty is without it.
        run: The run directory.
        config: The resolved configuration, shown beside the figures.

    Raises:
        ValueError: The mode is none.
        ModuleNotFoundError: Weights & Biases is not installed.
    """
    found: list[Logger] = [CSVLogger(run, name="", version="metrics")]
    if not settings:
        return found
    if settings["mode"] not in MODES:
        raise ValueError(f"logger.mode={settings['mode']!r}: expected one of {MODES}")
    try:
        import wandb  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "logger=wandb needs Weights & Biases: pip install 'keynet-cache[wandb]'"
        ) from error
    kept = run / ID
    if not kept.is_file():
        kept.write_text(secrets.token_hex(8))
    found.append(
        WandbLogger(
            name="/".join(run.resolve().parts[-3:]),
            save_dir=run,
            project=settings["project"],
            entity=settings["entity"],
            offline=settings["mode"] == "offline",
            id=kept.read_text(),
            resume="allow",
            config=config,
        )
    )
    return found


def log_report(logs: Sequence[Logger], records: Sequence[Record], run: Path) -> None:
    """Log a report's figures and its curve, and end the logging.

    Not its page, which shows requests: they may be private.
    """
    for one in logs:
        if not isinstance(one, WandbLogger):
            continue
        import wandb

        figures = {
            f"{r.split}/{r.subset}/{r.method}{'' if r.bits is None else f'_{r.bits}'}/{r.metric}": (
                r.value
            )
            for r in records
            if r.value is not None
        }
        one.experiment.summary.update(figures)
        one.experiment.log({"curve": wandb.Image(str(run / "curve.png"))})
        one.experiment.finish()
