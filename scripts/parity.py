"""Do all formats give the same codes? python -m scripts.parity run=outputs/demo/emoji/latest

The key model of a run, as torch runs it, beside what its export holds: TorchScript, frozen as the
loader does, torch.export, ONNX, at several batch sizes and thread counts, and half precision. The
export's manifest is told the result, and the search radius that covers it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import hydra
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.report import write_report
from keynet.export.exporter import fingerprint
from keynet.export.graphs import Graph, read_graph
from keynet.export.int8 import round_weights
from keynet.export.loader import KeyEncoder, load_key_model, read_file
from keynet.export.manifest import MODEL, ONNX, PT2, Parity, set_parity
from keynet.export.parity import Variant, measure_parity
from keynet.models.lora import merged
from keynet.training.config import explained
from keynet.training.module import ADAPTER
from keynet.training.start import start_from

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def eager(run: Path, encoder: KeyEncoder) -> torch.nn.Module:
    """Return the key model of a run, as it was before its export."""
    config = OmegaConf.load(run / "config.yaml")
    model = instantiate(config.model).eval().requires_grad_(False)
    start_from(model, run, encoder.preprocessor.tokenizer_json, ADAPTER)
    merged(model)
    if fingerprint(model, encoder.preprocessor) != encoder.space.fingerprint:
        round_weights(model)  # if it is an export in int8
    if fingerprint(model, encoder.preprocessor) != encoder.space.fingerprint:
        raise ValueError(f"run={run}: its checkpoint is not the model of its export; export again")
    return model


def variants(model: torch.nn.Module, encoder: KeyEncoder, export: Path) -> dict[str, Variant]:
    """Return what is compared with the model, by name."""

    def logits_of(graph: Callable[..., tuple]) -> Callable[..., Tensor]:
        return lambda *batch: graph(*batch)[3]

    def graph_of(name: str) -> Graph:
        return read_graph(name, read_file(export, encoder.manifest, name))

    def half(dtype: torch.dtype) -> Callable[..., Tensor]:
        def run(*batch: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=dtype):
                return model(*batch).logits

        return run

    loaded = logits_of(encoder.run)
    found = {
        "batch 1": Variant(logits_of(model), batch_size=1),
        "batch 7": Variant(logits_of(model), batch_size=7),
        "2 threads": Variant(logits_of(model), threads=2),
        MODEL: Variant(logits_of(graph_of(MODEL))),
        f"{MODEL}, frozen": Variant(loaded),
        f"{MODEL}, frozen, batch 1": Variant(loaded, batch_size=1),
    }
    for name in (PT2, ONNX):
        if name in encoder.manifest.files:
            found[name] = Variant(logits_of(graph_of(name)))
    return found | {name: Variant(half(dtype)) for name, dtype in HALVES.items()}


def tabulated(found: list[Parity], radius: int) -> Table:
    """Return the table."""
    table = Table(
        title=f"{found[0].requests:,} requests, against the model in float32 at batch 64",
        caption=f"a search radius of {radius} finds an entry, whichever two of them made the codes",
        box=box.SIMPLE,
    )
    for column in ("", "bits flipped", "with |logit| >= 1e-4", "codes changed", "most", "margin"):
        table.add_column(column, justify="right" if column else "left")
    for one in found:
        table.add_row(
            one.variant, f"{one.flipped_bits:.2e}", str(one.flipped_certain_bits),
            f"{100 * one.changed_codes:.2f} %", str(one.most_flips), f"{one.margin:.1e}",
        )  # fmt: skip
    return table


def records(data: str, encoder: KeyEncoder, found: list[Parity]) -> list[Record]:
    """Return the figures as records of a report."""
    made = []
    for one in found:
        sheet = Sheet(data, "test", one.variant, encoder.space.name, encoder.space.bits)
        count, bits = one.requests, one.requests * encoder.space.bits
        made += [
            sheet.figure("flipped_bits", one.flipped_bits, n=bits),
            sheet.figure("flipped_certain_bits", one.flipped_certain_bits, n=bits, unit="count"),
            sheet.figure("changed_codes", one.changed_codes, n=count),
            sheet.figure("most_flips", one.most_flips, n=count, unit="count"),
            sheet.figure("flip_margin", one.margin, n=count, unit="logit"),
        ]
    return made


def run(cfg: DictConfig) -> None:
    """Compare, tell the manifest, print, write."""
    if not isinstance(cfg.run, str):
        raise ValueError(
            f"run={cfg.run}: expected the folder of a run, such as outputs/demo/emoji/latest"
        )
    folder = Path(cfg.run)
    export = folder / "export"
    encoder = load_key_model(export)
    model = eager(folder, encoder)
    source = instantiate(cfg.data.source)
    requests = source.requests("test")[: cfg.requests]
    start = monotonic()

    def progress(done: int, total: int) -> None:
        left = (monotonic() - start) * (total - done) / done
        print(f"\r{done:,} of {total:,} requests, {left:.0f} s left ", end="", file=sys.stderr)

    found = measure_parity(
        Variant(lambda *batch: model(*batch).logits),
        variants(model, encoder, export), encoder.preprocessor, requests, progress,
    )  # fmt: skip
    print(file=sys.stderr)
    manifest = set_parity(export, found)
    out = Path(cfg.out)
    out.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", *sys.argv])
    write_report(out / "report.json", records(source.name, encoder, found), command)
    Console(width=110).print(tabulated(found, manifest.parity_radius or 0))
    print(f"report: {out / 'report.json'}; the manifest of {export} says it too")


@hydra.main(version_base="1.3", config_path="../conf", config_name="parity")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    explained(main)
