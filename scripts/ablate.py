"""What helps and what does not: python -m scripts.ablate aligners data=emoji

A table of variants (aligners, losses, teachers, ...: scripts/ablations.py) over frozen
encoders, whose features are made once; three seeds a row; judged on held-out pictures of the
training split. What was chosen there is reported with data.source.fold=test. Stopped, it goes on
with the rows that are missing. Any option of training may follow: steps=200.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path
from statistics import mean
from typing import Any

import pytorch_lightning as pl
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from keynet.evaluation.ablation import paired_difference
from keynet.evaluation.sweep_plot import sweep_png
from keynet.training.config import explained, register
from keynet.training.module import ADAPTER
from keynet.training.progress import quiet
from keynet.training.start import start_from
from scripts.ablation_bench import Bench
from scripts.ablations import TABLES, Ablation, Row

SEEDS = (0, 1, 2)
COMMON = ("data.source.fold=dev", "batch_size=240", "trainer=cpu")
CONF = Path(__file__).parents[1] / "conf"
OUTPUTS = Path("outputs/ablation")
log = logging.getLogger("ablate")

Run = dict[str, Any]  # figures by name, and "hits" by picture


def composed(table: Ablation, row: Row, given: Sequence[str], seed: int) -> DictConfig:
    """Return the configuration of one run; a row without teachers drops what is set of them."""
    options = [*table.student, *COMMON, *given]
    if "distill=none" in row.options:
        options = [o for o in options if not o.lstrip("+~").startswith("distill")]
    elif any(o.startswith("distill=") for o in given):
        options = [o for o in options if not o.startswith("distill=") or o in given]
    return compose("train", [*options, *row.options, f"seed={seed}"])


def described(cfg: DictConfig) -> str:
    """Return what tells one run from another."""
    told = [key for key in cfg if key not in ("run_dir", "export")]  # nothing is exported
    return OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, told))


def folder_of(root: Path, name: str, cfg: DictConfig) -> Path:
    """Return where the run of a row is kept: another configuration has another folder."""
    digest = hashlib.sha256(described(cfg).encode()).hexdigest()
    return root / f"{name}-{cfg.seed}-{digest[:8]}"


def stored(results: Path) -> dict[tuple[str, str], Run]:
    """Return the runs that are done, by row and configuration; a last line half written is not.

    Raises:
        ValueError: When another line is damaged.
    """
    text = results.read_text(encoding="utf-8") if results.exists() else ""
    known = {}
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            entry = json.loads(line)
            found = entry["found"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{results} line {number} is no run; remove the line") from error
        if "hits" in found:  # JSON has no numbers as names
            found["hits"] = {int(picture): share for picture, share in found["hits"].items()}
        known[entry["row"], entry["config"]] = found
    return known


def run(bench: Bench, table: Ablation, row: Row, cfg: DictConfig, folder: Path) -> Run:
    """Train one variant and judge it; ``folder`` keeps what others start from."""
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    parts = dict(model=cfg.model, losses=cfg.loss, distillation=cfg.distill, augment=cfg.augment)
    module = instantiate(cfg.module)(**{name: instantiate(part) for name, part in parts.items()})
    bench.data.seed, bench.data.batches_per_epoch = cfg.seed, cfg.steps
    folder.mkdir(parents=True, exist_ok=True)
    trainer = instantiate(
        cfg.trainer, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, default_root_dir=folder,
    )  # fmt: skip
    before = None
    if table.drift is not None and row.start is not None:
        before = instantiate(cfg.model).eval()
        tokenizer = bench.data.preprocessor.tokenizer_json
        start_from(before, cfg.module.start_from, tokenizer, ADAPTER)
    trainer.fit(module, datamodule=bench.data)
    if any(other.start for other in table.rows.values()) and row.start is None:
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "export").mkdir(exist_ok=True)
        trainer.save_checkpoint(folder / "checkpoints" / "last.ckpt", weights_only=True)
        tokenizer = bench.data.preprocessor.tokenizer_json
        (folder / "export" / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    return bench.judge(module.eval(), table, row.by_code, before)


def main() -> None:
    """Run what is missing and print the table."""
    if len(sys.argv) < 2 or sys.argv[1] not in TABLES:
        sys.exit(f"error: name a table: {', '.join(TABLES)}; then options, such as data=emoji")
    register()
    quiet()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    chosen, given = sys.argv[1], sys.argv[2:]
    if any(option.startswith("seed=") for option in given):
        sys.exit(f"error: seed= is given by the table: its rows have seeds {SEEDS}")
    table = TABLES[chosen]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        first = composed(table, next(iter(table.rows.values())), given, 0)
        source = instantiate(first.data.source)
        # Of sources that have captions, not all train on them.
        rows = table.rows | (table.captioned if "caption_contrast" in first.loss else {})
        data = source.name
        root = OUTPUTS / chosen / data
        root.mkdir(parents=True, exist_ok=True)
        results = root / "results.jsonl"
        known = stored(results)
        for row in rows.values():  # what is wrong is said before any row is trained
            cfg = composed(table, row, given, SEEDS[0])
            if cfg.steps < 1:
                raise ValueError(f"steps={cfg.steps}: expected at least 1")
        bench: Bench | None = None
        found: dict[str, list[Run]] = {row: [] for row in rows}
        for number, (name, seed) in enumerate((row, seed) for row in rows for seed in SEEDS):
            row = rows[name]
            cfg = composed(table, row, given, seed)
            if row.start is not None:
                base = composed(table, rows[row.start], given, seed)
                cfg.module.start_from = str(folder_of(root, row.start, base))
            folder = folder_of(root, name, cfg)
            config = described(cfg)  # before it is built, which resolves it
            if (name, config) not in known:
                if bench is None or not bench.serves(cfg):
                    bench = None  # its features leave the memory first
                    if cfg.data.source != first.data.source:
                        first, source = cfg, instantiate(cfg.data.source)
                    bench = Bench(cfg, source)
                if row.untrained:  # equal for all seeds
                    judged = (found[name] or [bench.concatenated(table)])[0]
                else:
                    judged = run(bench, table, row, cfg, folder)
                known[name, config] = judged
                line = {"row": name, "config": config, "found": judged}
                _append(results, json.dumps(line))
            found[name].append(known[name, config])
            shown = {k: round(v, 4) for k, v in found[name][-1].items() if k != "hits"}
            log.info("%d of %d: %s, seed %d: %s", number + 1, 3 * len(rows), name, seed, shown)
    Console(width=200).print(tabulated(data, found))
    print(f"results: {results}")
    if table.swept:
        (root / "sweep.png").write_bytes(swept(table, found))
        print(f"plot: {root / 'sweep.png'}")


def _append(results: Path, line: str) -> None:
    """Write a line after the last whole one."""
    text = results.read_text(encoding="utf-8") if results.exists() else ""
    if not text.endswith("\n") and text:
        results.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    with results.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def swept(table: Ablation, found: dict[str, list[Run]]) -> bytes:
    """Return the plot of a table that tries values of one setting."""
    hits = {row: [run["replay_hit_rate"] for run in runs] for row, runs in found.items()}
    return sweep_png(
        {value: hits[row] for row, value in table.swept.items()},
        {row: rates for row, rates in hits.items() if row not in table.swept},
        setting=next(iter(table.swept)).split()[0],
        figure="hit rate at 1 % false hits",
    )


def tabulated(data: str, found: dict[str, list[Run]]) -> Table:
    """Return the table: means with least and greatest, and hits less those of the first row."""
    table = Table(title=f"{data}: mean of {len(SEEDS)} seeds (least to greatest)")
    base = next(iter(found.values()))
    metrics = dict.fromkeys(m for runs in found.values() for m in runs[0] if m != "hits")
    compared = "hits" in base[0]
    difference = f"hits less {next(iter(found))} (95 %, seeds and pictures)"
    for column in ("row", *metrics, *([difference] if compared else [])):
        table.add_column(column)
    for row, runs in found.items():
        cells = []
        for metric in metrics:
            values = [run[metric] for run in runs if not isnan(run.get(metric, nan))]
            few = "" if len(values) == len(runs) else f", {len(values)} of {len(runs)}"
            cell = "n/a"
            if values:
                cell = f"{mean(values):.3f} ({min(values):.3f} to {max(values):.3f}{few})"
            cells.append(cell)
        if compared:
            gain = paired_difference([r["hits"] for r in runs], [r["hits"] for r in base])
            cells.append("{:+.3f} ({:+.3f} to {:+.3f})".format(*gain))
        table.add_row(row, *cells)
    return table


if __name__ == "__main__":
    explained(main)
