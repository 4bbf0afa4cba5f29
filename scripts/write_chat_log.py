"""Write a chat log to try the road with: python -m scripts.write_chat_log data=emoji path=LOG.jsonl

The requests of a data source as lines of ``data=chat_log``, with repeats and broken lines of every
kind.
"""

from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from data.broken_lines import shown_lines
from data.log_writer import write_log
from keynet.training.config import explained


def run(cfg: DictConfig) -> None:
    """Write the log and say which of its lines are broken.

    Raises:
        ValueError: An option is out of range, or the data has too few requests.
    """
    if type(cfg.lines) is not int or cfg.lines < 1:
        raise ValueError(f"lines={cfg.lines}: expected a whole number from 1")
    for name in ("broken", "repeats"):
        if type(cfg[name]) not in (int, float) or not 0 <= cfg[name] < 1:
            raise ValueError(f"{name}={cfg[name]}: expected a share from 0, below 1")
    path = Path(cfg.path)
    source = instantiate(cfg.data.source)
    requests = [r for split in ("train", "calibration", "test") for r in source.requests(split)]
    broken = write_log(
        requests, path,
        lines=cfg.lines, broken=cfg.broken, repeats=cfg.repeats, seed=cfg.seed,
    )  # fmt: skip
    print(f"{path}: {cfg.lines:,} lines, {sum(map(len, broken.values())):,} of them broken")
    for reason, numbers in broken.items():
        print(f"  {len(numbers):,} {reason} ({shown_lines(numbers)})")


@hydra.main(version_base="1.3", config_path="../conf", config_name="write_chat_log")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    explained(main)
