"""Calibrate an export's thresholds: python -m scripts.calibrate export=PATH data=emoji

The thresholds of the calibration split go into the manifest, where
``keynet.cache.calibrated.CalibratedThresholds`` finds them. With ``check=200`` nothing is written
there: it is measured how often such thresholds break their budget on requests that they were not
calibrated on, split by split; stopped, the same command goes on. With ``drift=vendor``, ``image``
or ``text`` a change of vendor, or of quality, is replayed under each rule that follows drift.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import hydra
import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from data.held_out import HeldOut
from data.requests import Source
from keynet.evaluation.acceptance_drift import (
    asked_degraded,
    degraded_change,
    drift_records,
    vendor_change,
)
from keynet.evaluation.calibration import FittedThreshold, calibrate_keys, stored
from keynet.evaluation.calibration_check import Pool, check_records, check_split
from keynet.evaluation.evaluate import signs
from keynet.evaluation.grid_table import print_grid
from keynet.evaluation.labels import Labels
from keynet.evaluation.left_out import left_out_lines, left_out_records
from keynet.evaluation.modality_drift import degraded
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.replay_keys import encoded_keys
from keynet.evaluation.report import write_report
from keynet.evaluation.settings import MAIN_BUDGET, JudgeSettings
from keynet.evaluation.table import Cell, Figures, Grid, Row, label
from keynet.export.loader import KeyEncoder, load_key_model
from keynet.export.manifest import set_thresholds
from keynet.replay.neighbours import Floats
from keynet.training.config import explained

DRIFTS = ("vendor", "image", "text")


def encoded(
    encoder: KeyEncoder, source: Source, splits: Sequence[str], keep: Path
) -> tuple[Mapping[str, np.ndarray], Labels]:
    """Return keys and codes of the requests of some splits, and their labels."""
    requests = [request for split in splits for request in source.requests(split)]
    labels = Labels.of(requests)
    return encoded_keys(encoder, requests, labels, keep), labels


def rows_of(
    encoder: KeyEncoder, source: Source, splits: Sequence[str], keep: Path
) -> tuple[dict[int | None, Floats], Labels]:
    """Return the unit rows of the requests of some splits, by bits (None: the vectors)."""
    found, labels = encoded(encoder, source, splits, keep)
    codes = {bits: signs(found["code"], bits) for bits in encoder.code_lengths}
    return {None: found["key"], **codes}, labels


def calibrate(cfg: DictConfig, encoder: KeyEncoder, source: Source) -> None:
    """Write the thresholds into the manifest and print them.

    Raises:
        ValueError: No threshold keeps any budget; the message says why.
    """
    keys, labels = rows_of(encoder, source, ["calibration"], Path(cfg.keep))
    found = calibrate_keys(
        keys, labels, list(cfg.budgets), source.name,
        seed=cfg.seed, disjoint_phrasings=source.disjoint_phrasings,
    )  # fmt: skip
    if all(one.threshold.value is None for one in found):
        left_out = left_out_lines(left_out_records(source, encoder.space.name))
        why = "; ".join([str(found[0].threshold.reason), *left_out])
        raise ValueError(f"{source.name} gives no threshold: {why}")
    mark = encoder.space.fingerprint
    kept = [stored(one.threshold, one.modalities, one.bits, mark) for one in found]
    set_thresholds(cfg.export, kept)
    print_grid(threshold_grid(found, source.name))
    print(f"thresholds: {Path(cfg.export) / 'manifest.json'}")


def threshold_grid(found: Sequence[FittedThreshold], data: str) -> Grid:
    """Return a row a threshold; where there is none, the notes say why."""
    rows, reasons = [], []
    for one in found:
        fitted = one.threshold
        text = "n/a" if fitted.value is None else f"{fitted.value:.4f}"
        bits = "float" if one.bits is None else str(one.bits)
        told = (one.modalities, bits, f"{fitted.budget:g}", text, f"{fitted.n:,}")
        rows.append(Row(fitted.kind, "trained", tuple(map(Cell, told))))
        if fitted.value is None:
            reasons.append(f"n/a: {fitted.kind}, {one.modalities}: {fitted.reason}")
    columns = (("requests",), ("bits",), ("budget",), ("threshold",), ("calibrated", "on"))
    return Grid(f"{data}: thresholds", columns, tuple(rows), tuple(dict.fromkeys(reasons)))


def check(cfg: DictConfig, encoder: KeyEncoder, source: Source) -> list[Record]:
    """Return how often the budget is broken over splits of held-out requests.

    Raises:
        ValueError: The folder holds another check.
    """
    keys, labels = rows_of(encoder, source, list(cfg.splits), Path(cfg.keep))
    if cfg.bits not in keys:
        raise ValueError(f"bits={cfg.bits}: expected null or one of {encoder.code_lengths}")
    both = labels.modalities == "image+text"
    pool = Pool.of(keys[cfg.bits][both], labels.take(both), source.disjoint_phrasings)
    settings = JudgeSettings(budgets=(MAIN_BUDGET,), seed=cfg.seed)
    asked = {
        "key_space": encoder.space.fingerprint, "data": source.name, "splits": list(cfg.splits),
        "requests": int(both.sum()), "bits": cfg.bits, "seed": cfg.seed,
    }  # fmt: skip
    path = Path(cfg.out) / "splits.jsonl"
    rows = resumed(path, asked)
    start, first = time.monotonic(), len(rows)
    for number in range(first, cfg.check):
        rows.append(check_split(pool, settings, MAIN_BUDGET, number))
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        left = (time.monotonic() - start) / (len(rows) - first) * (cfg.check - len(rows))
        print(f"\r{len(rows)} of {cfg.check} splits, {left:.0f} s left ", end="", file=sys.stderr)
    print(file=sys.stderr)
    sheet = Sheet(source.name, "+".join(cfg.splits), "single_pass", "", cfg.bits)
    return check_records(sheet, rows[: cfg.check], MAIN_BUDGET)


def drift(cfg: DictConfig, encoder: KeyEncoder, source: Source) -> list[Record]:
    """Return what each rule does when requests change.

    Raises:
        ValueError: The change is unknown.
    """
    if cfg.drift not in DRIFTS:
        raise ValueError(f"drift={cfg.drift}: expected one of {', '.join(DRIFTS)}")
    found, labels = encoded(encoder, source, ["calibration", "test"], Path(cfg.keep))
    size = len(source.requests("calibration"))
    known = found["key"], found["code"], labels, size
    if cfg.drift == "vendor":
        change = vendor_change(*known, cfg.seed)
    else:
        asked = asked_degraded(labels, size, cfg.seed)
        test = source.requests("test")
        changed = [degraded(test[row - size], cfg.drift, seed) for seed, row in enumerate(asked[1])]
        new = encoded_keys(encoder, changed, Labels.of(changed), Path(cfg.keep))
        change = degraded_change(*known, asked, new["key"], new["code"], cfg.drift)
    return drift_records(change, encoder.space, source.name, cfg.seed)


def resumed(path: Path, asked: dict) -> list[dict]:
    """Return the splits that a stopped check has measured; a new file names what it is of.

    Raises:
        ValueError: The file is of another check.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asked) + "\n", encoding="utf-8")
        return []
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):  # a split that was cut off is measured again
        text = text[: text.rfind("\n") + 1]
        path.write_text(text, encoding="utf-8")
    of, *rows = [json.loads(line) for line in text.splitlines()] or [None]
    if of != asked:
        raise ValueError(f"{path} is of {of}, asked is {asked}; give another out=")
    return rows


def figures_grid(records: Sequence[Record]) -> Grid:
    """Return a row a rule and subset, each figure with its interval."""
    figures = Figures(records)
    ((data, split),) = figures.slices()
    metrics = list(dict.fromkeys(record.metric for record in records))
    rows = []
    for where in dict.fromkeys((r.data, r.split, r.subset, (r.method, r.bits)) for r in records):
        cells = []
        for metric in metrics:
            cell, record = figures.cell(where, metric), figures.by_key.get((where, metric))
            if record is not None and record.low is not None:
                ends = cell.hint.removesuffix(f", n = {record.n:,}")
                cell = Cell(f"{cell} ({ends})")
            cells.append(cell)
        _, _, subset, method = where
        rows.append(Row(f"{label(method)}, {subset}", "trained", tuple(cells)))
    columns = tuple((metric.replace("_", " "),) for metric in metrics)
    notes = ("Rates and shares in percent, with their intervals.",)
    return Grid(f"{data}, {split}", columns, tuple(rows), notes)


def run(cfg: DictConfig) -> None:
    """Calibrate, or check, or replay a drift."""
    encoder = load_key_model(cfg.export)
    source = HeldOut(instantiate(cfg.data.source), cfg.export)
    if not cfg.check and not cfg.drift:
        calibrate(cfg, encoder, source)
        return
    records = check(cfg, encoder, source) if cfg.check else drift(cfg, encoder, source)
    out = Path(cfg.out) / "report.json"
    left_out = left_out_records(source, encoder.space.name)
    write_report(out, [*records, *left_out], " ".join(["python", *sys.argv]))
    print_grid(figures_grid(records))
    print(f"report: {out}")


@hydra.main(version_base="1.3", config_path="../conf", config_name="calibrate")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    explained(main)
