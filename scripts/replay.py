"""Replay a public trace as requests of a data source, and say what a key is worth.

    python -m scripts.replay strategies export=PATH data=emoji

strategies: ways to key a request side by side; policies: replacement at several capacities;
modalities: single against mixed traffic, misaligned keys; cold_start: how fast a cache warms up;
entropy: undecided matches against wrong ones; counting: keys of one resource; all: all of them.
The trace's objects become groups of the test split's requests, each visit another of them;
thresholds are calibrated on the calibration split.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from data.held_out import HeldOut
from keynet.cache.policies.catalog import POLICIES
from keynet.evaluation.grid_table import print_grid
from keynet.evaluation.left_out import left_out_records
from keynet.evaluation.replay_data import ReplayData
from keynet.evaluation.replay_findings import Findings
from keynet.evaluation.replay_laboratory import COMMANDS, Laboratory
from keynet.evaluation.replay_page import write_replay_page
from keynet.evaluation.replay_strategies import check_strategies
from keynet.evaluation.report import write_report
from keynet.evaluation.settings import MAIN_BUDGET, JudgeSettings
from keynet.export.loader import load_key_model
from keynet.replay.cache_replay import check_policies
from keynet.replay.sampling import sampled
from keynet.replay.semantic_trace import SemanticTrace, map_to_requests
from keynet.replay.traces import read_trace
from keynet.training.config import explained

ALL = "all"


def run(cfg: DictConfig) -> None:
    """Load, replay, report."""
    if cfg.command not in (*COMMANDS, ALL):
        raise ValueError(f"no command {cfg.command!r}; known are {', '.join((*COMMANDS, ALL))}")
    for name in ("visits", "traces"):
        if type(cfg[name]) is not int or cfg[name] < 1:
            raise ValueError(f"{name}={cfg[name]}: expected a whole number, 1 or more")
    strategies = check_strategies(cfg.strategies)
    policies = check_policies(POLICIES if cfg.policies is None else cfg.policies)
    for trace in (cfg.trace, cfg.arrivals):
        if trace is not None:
            next(read_trace(trace.path, trace.format))
    encoder = load_key_model(cfg.export)
    source = HeldOut(instantiate(cfg.data.source), cfg.export)
    data = ReplayData.of(source, encoder, Path(cfg.keep), cfg.baseline_image_size)
    labels = data.labels["test"]

    def make(number: int, shares: Mapping[str, Mapping[str, float]]) -> SemanticTrace:
        seed = cfg.seed + number
        visits = sampled(read_trace(cfg.trace.path, cfg.trace.format), cfg.trace.sample, seed)
        trace = map_to_requests(
            visits, labels.group, labels.modalities, most=cfg.visits, seed=seed, **shares
        )
        if cfg.arrivals is None:
            return trace
        return trace.arriving(read_trace(cfg.arrivals.path, cfg.arrivals.format))

    lab = Laboratory(
        data=data,
        make=make,
        traces=cfg.traces,
        settings=JudgeSettings(budgets=tuple({MAIN_BUDGET, cfg.budget}), seed=cfg.seed),
        budget=cfg.budget,
        strategies=strategies,
        policies=policies,
        shares=list(cfg.capacities),
        place=Path(cfg.trace.path).name.split(".")[0],
        seed=cfg.seed,
    )
    found = Findings()
    for name in COMMANDS if cfg.command == ALL else [cfg.command]:
        part = COMMANDS[name](lab)
        for grid in part.grids:
            print_grid(grid)
        found.add(part)
    found.records += left_out_records(source, encoder.space.name)
    command, folder = " ".join(["python", *sys.argv]), Path(cfg.out)
    write_report(folder / "report.json", found.records, command)
    title = f"replay, {data.name}, {cfg.command}"
    write_replay_page(folder / "report.html", title, found, source.attribution, command)
    print("\n".join([*source.attribution, "", f"report: {folder / 'report.html'}"]))


@hydra.main(version_base="1.3", config_path="../conf", config_name="replay")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    if len(sys.argv) > 1 and "=" not in sys.argv[1] and not sys.argv[1].startswith("-"):
        sys.argv[1] = f"command={sys.argv[1]}"
    explained(main)
