"""Train an MM-Align head on embeddings of your own: python -m scripts.align fit image.npy text.npy

Each file is one modality, [N, width]; row n of one belongs with row n of the others. A row may
stand several times, as a picture with several captions does. Held out is a tenth of the rows of the
first file; where rows of another are then on both sides, that is told. What is nearly equal, as two
crops of a picture, counts as different and makes the figures too good. To use what ``fit`` wrote:

    head = MMAlign(input_dims={"image": 768, "text": 768}, key_dim=512)
    load_weights(head, "head.safetensors")
    keys = head.frozen()  # in front of the cache
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aligners.mm_align import MMAlign
from aligners.weights import DTYPES, load_weights, read_weights, save_weights, weight_error
from keynet.training.config import explained

MIN_DISTINCT = 110  # a tenth of them is 11: recall@10 among ten says nothing
MAX_HELD_OUT = 5000  # pairs; all against all, in memory
MIN_STEPS = 200  # of few pairs, the epochs asked for are a dozen steps: a head at its start
BATCH, RATE, DECAY = 512, 1e-3, 0.1
LEAST_NORM = 1e-12  # below it, normalising gives no unit vector


def read(files: Sequence[str]) -> dict[str, Tensor]:
    """Return the embeddings by modality, float32 [N, width].

    Args:
        files: PATH of image, then of text; or NAME=PATH.

    Raises:
        ValueError: Files that are missing, no matrix of finite floats with a direction a row, or of
            different lengths.
    """
    found: dict[str, Tensor] = {}
    unnamed = iter(("image", "text"))
    for entry in files:
        name, path = entry.split("=", 1) if "=" in entry else (next(unnamed, ""), entry)
        if not _names_a_modality(name) or name in found:
            raise ValueError(f"{entry}: name its modality, once, as in audio={path}")
        found[name] = _matrix(path)
    if len(found) < 2:
        raise ValueError("one modality alone cannot be aligned: give at least two files")
    rows = {name: len(matrix) for name, matrix in found.items()}
    if len(set(rows.values())) > 1:
        given = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise ValueError(f"rows are pairs, but their numbers differ: {given}")
    return found


def _names_a_modality(name: str) -> bool:
    return name.isidentifier() and not hasattr(nn.ModuleDict(), name)


def _matrix(path: str) -> Tensor:
    try:
        with open(path, "rb") as file:  # numpy leaves one open that it takes for a damaged .npz
            array = np.load(file, allow_pickle=False)
    except (
        OSError, ValueError, EOFError, BadZipFile, tokenize.TokenError, MemoryError
    ) as error:  # fmt: skip
        raise ValueError(f"{path} cannot be read as .npy ({error})") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f":
        what = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "an .npz"
        raise ValueError(f"{path} holds {what}: expected one array of floats, [rows, width]")
    if not array.size:
        raise ValueError(f"{path} is empty, {list(array.shape)}: expected rows and a width above 0")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(bad):
        raise ValueError(f"{path}: row {bad[0]} is not finite in float32; leave such pairs out")
    matrix = torch.from_numpy(array)
    norms = matrix.norm(dim=1)
    bad = np.flatnonzero(~(norms.isfinite() & (norms >= LEAST_NORM)))
    if len(bad):
        raise ValueError(
            f"{path}: row {bad[0]} has the norm {norms[bad[0]]:.3g} in float32 and no direction; "
            "scale the file, or leave such pairs out"
        )
    return matrix


def identities(matrix: Tensor) -> Tensor:
    """Return one number a row [N], the same for equal rows."""
    array = matrix.numpy()
    whole = array.view(np.dtype((np.void, array.strides[0]))).ravel()
    return torch.from_numpy(np.unique(whole, return_inverse=True)[1])


def held_out(first: Tensor, seed: int) -> Tensor:
    """Return which pairs are kept from training, bool [N]: a tenth, whole groups.

    Args:
        first: The first modality's identities [N]; a picture is never on both sides.
        seed: Of the choice.

    Raises:
        ValueError: Too few different rows.
    """
    distinct = int(first.max()) + 1 if len(first) else 0
    if distinct < MIN_DISTINCT:
        raise ValueError(
            f"{distinct} different rows in the first file: at least {MIN_DISTINCT} are needed "
            "to train and to hold a tenth out"
        )
    order = torch.randperm(distinct, generator=torch.Generator().manual_seed(seed))
    pairs = torch.bincount(first, minlength=distinct)[order].cumsum(0)
    groups = min(distinct // 10, max(1, int((pairs <= MAX_HELD_OUT).sum())))
    return torch.isin(first, order[:groups])


def fit(
    rows: Mapping[str, Tensor], same: Mapping[str, Tensor], args: argparse.Namespace
) -> MMAlign:
    """Train a head on the CPU.

    Args:
        rows: By modality, [N, width].
        same: Their identities [N].
        args: key_dim, hidden, dropout, epochs, seed.

    Source: symmetric InfoNCE with a learned temperature, as CLIP (Radford et al., 2021); over more
    than two modalities, the mean of all pairs of them.
    """
    torch.manual_seed(args.seed)
    head = MMAlign(
        input_dims={name: matrix.shape[1] for name, matrix in rows.items()},
        key_dim=args.key_dim,
        hidden_dim=args.hidden,
        dropout=args.dropout,
    )
    log_scale = nn.Parameter(torch.tensor(3.0))  # a temperature of 0.05
    matrices = [p for p in head.parameters() if p.ndim == 2]
    others = [log_scale, *(p for p in head.parameters() if p.ndim != 2)]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    count = len(next(iter(rows.values())))
    batch = min(BATCH, count)
    steps = max(MIN_STEPS, args.epochs * count // batch)
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=RATE, total_steps=steps + 1, pct_start=0.03
    )
    for _ in range(steps):
        chosen = torch.randperm(count)[:batch]
        units = {name: head.project(name, matrix[chosen]) for name, matrix in rows.items()}
        losses = []
        for a, b in combinations(rows, 2):
            equal = [same[name][chosen][:, None] == same[name][chosen] for name in (a, b)]
            right = (equal[0] | equal[1]).float()  # a pair that shares a row is as right
            right = right / right.sum(1, keepdim=True)
            logits = units[a] @ units[b].T * log_scale.exp()
            losses += [F.cross_entropy(logits, right), F.cross_entropy(logits.T, right)]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        schedule.step()
    return head.eval()


def recall(query: Tensor, store: Tensor, asked: Tensor, stored: Tensor) -> list[float]:
    """Return recall@1, recall@10 and both of a random order; ties count against it.

    Args:
        query: Unit vectors [N, D], row n belongs to row n of ``store``.
        store: Unit vectors [N, D].
        asked: Identities of the queries [N]; equal ones are one query with several answers.
        stored: Identities [N]; equal ones are one candidate.
    """
    asked, stored = (found.unique(return_inverse=True)[1] for found in (asked, stored))
    queries, candidates = (
        query.new_zeros(int(n.max()) + 1, query.shape[1]) for n in (asked, stored)
    )
    queries[asked], candidates[stored] = query, store
    right = torch.zeros(len(queries), len(candidates), dtype=torch.bool)
    right[asked, stored] = True
    cosines = queries @ candidates.T
    best = cosines.masked_fill(~right, -2).amax(1, keepdim=True)
    before = ((cosines >= best) & ~right).sum(1)
    wrong, total = (~right).sum(1, dtype=torch.float64), len(candidates)
    missed = {
        k: torch.stack([(wrong - n).clamp_min(0) / max(total - n, 1) for n in range(k)]).prod(0)
        for k in (1, 10)
    }
    found = [float((before < k).float().mean()) for k in missed]
    return found + [float(1 - m.mean()) for m in missed.values()]


def recall_table(head: MMAlign, rows: Mapping[str, Tensor], same: Mapping[str, Tensor]) -> str:
    """Return recall between held-out modalities, by the head, as given, and at random."""
    lines = [f"{'recall@1, recall@10 in %':26}{'head':>14}{'as given':>14}{'random':>14}"]
    with torch.no_grad():
        units = {name: head.project(name, matrix) for name, matrix in rows.items()}
    for a, b in permutations(rows, 2):
        mine = recall(units[a], units[b], same[a], same[b])
        cells = [mine[:2], None, mine[2:]]
        if rows[a].shape == rows[b].shape:  # else there is no cosine between them
            given = (F.normalize(rows[name], dim=-1) for name in (a, b))
            cells[1] = recall(*given, same[a], same[b])[:2]
        shown = ["n/a" if c is None else f"{100 * c[0]:.1f} {100 * c[1]:5.1f}" for c in cells]
        lines.append(f"{a + ' to ' + b:26}" + "".join(f"{cell:>14}" for cell in shown))
    return "\n".join(lines)


def error_table(head: MMAlign, rows: Mapping[str, Tensor]) -> str:
    """Return what fp16 and int8 cost against fp32."""
    lines = [
        f"{'error against fp32':26}{'weights max':>14}{'mean':>10}{'1-cos max':>12}{'mean':>10}"
    ]
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES[1:]:
            file = Path(folder, dtype)
            size = save_weights(head, file, dtype).bytes
            error = weight_error(head, file, rows)
            lines.append(
                f"{f'{dtype}, {size / 1e6:.2f} MB':26}{error.max_weight:14.1e}"
                f"{error.mean_weight:10.1e}{error.max_cosine:12.1e}{error.mean_cosine:10.1e}"
            )
    return "\n".join(lines)


def fit_command(args: argparse.Namespace) -> None:
    """Train, judge, write."""
    for name, least in (("key_dim", 1), ("epochs", 1), ("hidden", 0), ("seed", 0)):
        if not least <= getattr(args, name) < 2**31:
            option = f"--{name.replace('_', '-')} {getattr(args, name)}"
            raise ValueError(f"{option}: expected a whole number from {least} to {2**31 - 1}")
    if not 0 <= args.dropout < 1:
        raise ValueError(f"--dropout {args.dropout}: expected a number from 0 to below 1")
    _check_writable(args.out)
    rows = read(args.files)
    same = {name: identities(matrix) for name, matrix in rows.items()}
    held = held_out(next(iter(same.values())), args.seed)
    began = time.perf_counter()
    head = fit(*({n: t[~held] for n, t in each.items()} for each in (rows, same)), args)
    seconds = time.perf_counter() - began
    kept, kept_same = ({n: t[held] for n, t in each.items()} for each in (rows, same))
    print(f"trained on {int((~held).sum())} pairs in {seconds:.1f} s; held out: {int(held.sum())}")
    for name, ids in same.items():
        known = int(torch.isin(ids[held], ids[~held]).sum())
        if known:
            print(
                f"{known} of the {int(held.sum())} held-out pairs have a row of {name} that was "
                "trained on in another pair: new ones are found less often than the table says"
            )
    print(recall_table(head, kept, kept_same))
    print(error_table(head, kept))
    report = save_weights(head, args.out, args.dtype)
    print(f"wrote {args.out}: {report.dtype}, {report.bytes / 1e6:.2f} MB")


def _check_writable(out: Path) -> None:
    """Raise ValueError before, not after, the training whose head goes there."""
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}; make it first")
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; give a file, as in {out}/head.safetensors")
    try:
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise ValueError(
            f"--out {out}: nothing can be written to {out.parent} ({error.strerror}); give a file "
            "in another folder"
        ) from error


def report_command(args: argparse.Namespace) -> None:
    """Read a head in fp32 and print the table."""
    tensors, report = read_weights(args.head)
    if report.dtype != "fp32":
        raise ValueError(
            f"{args.head} is {report.dtype} itself, off fp32 by {report.max_error:.1e} at most: "
            "the table needs a head in fp32, from fit --dtype fp32"
        )
    print(error_table(load_head(args.head, tensors), read(args.files)))


def load_head(path: Path, tensors: Mapping[str, Tensor]) -> MMAlign:
    """Return the head of a file, its widths read off its tensors."""
    first = {m[1]: (m[2], t) for m, t in _first_layers(tensors)}
    last = [
        t
        for name, t in tensors.items()
        if re.fullmatch(r"projections\.\w+\.(2\.)?bias", name) and t.ndim == 1
    ]
    if not first or not last:
        raise ValueError(
            f"{path} holds no MM-Align head: expected projections.NAME.weight, a matrix, and "
            "projections.NAME.bias, a vector"
        )
    for name in first:
        if not _names_a_modality(name):
            raise ValueError(f"{path}: {name!r} cannot be the name of a modality; rename it")
    hidden = [len(t) for inner, t in first.values() if inner]
    head = MMAlign(
        input_dims={name: t.shape[1] for name, (_, t) in first.items()},
        key_dim=len(last[0]),
        hidden_dim=hidden[0] if hidden else 0,
    )
    load_weights(head, path)
    return head.eval()


def _first_layers(tensors: Mapping[str, Tensor]) -> Iterator[tuple[re.Match[str], Tensor]]:
    for name, tensor in tensors.items():
        match = re.fullmatch(r"projections\.(\w+?)\.(0\.)?weight", name)
        if match and tensor.ndim == 2:
            yield match, tensor


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    whole = argparse.ArgumentParser(
        prog="python -m scripts.align",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = whole.add_subparsers(dest="command", required=True)
    one = commands.add_parser("fit", help="train a head, judge it on a held-out tenth, write it")
    one.set_defaults(run=fit_command)
    one.add_argument("--out", type=Path, default=Path("head.safetensors"))
    one.add_argument("--key-dim", type=int, default=512, help="width of the common space")
    one.add_argument("--hidden", type=int, default=0, help="width of a hidden layer; 0: linear")
    one.add_argument("--dropout", type=float, default=0.3, help="of the embeddings' entries")
    one.add_argument("--epochs", type=int, default=12, help=f"but at least {MIN_STEPS} steps")
    one.add_argument("--dtype", choices=DTYPES, default="fp32", help="of the file")
    one.add_argument("--seed", type=int, default=0)
    two = commands.add_parser("report", help="what fp16 and int8 cost a head in fp32")
    two.set_defaults(run=report_command)
    two.add_argument("head", type=Path)
    for command in (one, two):
        command.add_argument(
            "files", nargs="+", metavar="FILE", help="image.npy text.npy NAME=x.npy ..."
        )
    return whole


def main() -> None:
    """Parse and run."""
    args = parser().parse_args()
    args.run(args)


if __name__ == "__main__":
    explained(main)
