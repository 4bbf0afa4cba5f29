"""What is in your data, and what a cache could save of it: python -m scripts.profile_data

For a chat log also which lines are broken and why, and how far its groups are in doubt. Works for
any data source: data=emoji.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from data.chat_log import Log, RefusedLogError
from data.labelled_pairs import write_pairs
from data.profile import profile
from data.requests import Source, Split
from data.training_pairs import training_triples, write_triples
from keynet.evaluation.grid_table import print_grid
from keynet.evaluation.records import Record
from keynet.evaluation.report import write_report
from keynet.evaluation.table import Grid
from keynet.training.config import explained
from keynet.types import Request
from scripts.data_grids import (
    ALL,
    broken_grid,
    broken_records,
    doubt_grid,
    doubt_records,
    figure_records,
    figures_grid,
)

SPLITS: tuple[Split, ...] = ("train", "calibration", "test")


def run(cfg: DictConfig) -> None:
    """Read, count, print, write; of a log that is refused, what is broken.

    Raises:
        ValueError: A file is there already, or the data cannot be used.
    """
    for name in ("pairs", "doubt"):
        if cfg[name] is not None and Path(cfg[name]).exists():
            raise ValueError(f"{name}={cfg[name]} is there already; give another name, or move it")
    if cfg.pairs is not None and cfg.pairs == cfg.doubt:
        raise ValueError(f"pairs and doubt are both {cfg.pairs}; give each its own file")
    source: Source = instantiate(cfg.data.source)
    report = Path(cfg.out) / "report.json"
    try:
        log = getattr(source, "log", None)
    except RefusedLogError as error:
        _tell(
            report,
            broken_records(source.name, error.lines, error.broken),
            [broken_grid(source.name, error.lines, error.broken, {})],
        )
        raise ValueError(f"{error}; all of them: {report}") from error
    log = log if isinstance(log, Log) else None
    if cfg.doubt is not None and log is None:
        raise ValueError("doubt is of a chat log's groups; give data=chat_log")
    requests: dict[str, list[Request]] = {split: source.requests(split) for split in SPLITS}
    # A log's own order is that of time.
    everything = [r for split in SPLITS for r in requests[split]] if log is None else log.requests
    found = {ALL: profile(everything)} | {s: profile(of) for s, of in requests.items()}
    records, grids = figure_records(source.name, found), [figures_grid(source.name, found)]
    if log is not None:
        records += broken_records(source.name, log.lines, log.broken)
        records += doubt_records(source.name, log)
        broken = broken_grid(source.name, log.lines, log.broken, log.unread)
        grids = [broken, *grids, doubt_grid(source.name, log)]
    _tell(report, records, grids)
    if cfg.pairs is not None:
        count = write_triples(training_triples(requests["train"], cfg.seed), Path(cfg.pairs))
        print(f"pairs:  {cfg.pairs}, {count:,} lines")
    if cfg.doubt is not None and log is not None:
        write_pairs(log.doubt.examples, log.requests, Path(cfg.doubt))
        print(f"doubt:  {cfg.doubt}, {len(log.doubt.examples):,} pairs to label")
    print(f"report: {report}")


def _tell(report: Path, records: Sequence[Record], grids: Sequence[Grid]) -> None:
    write_report(report, records, " ".join(["python", *sys.argv]))
    for grid in grids:
        print_grid(grid)


@hydra.main(version_base="1.3", config_path="../conf", config_name="profile_data")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    explained(main)
