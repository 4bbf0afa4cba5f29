"""A key model that starts from the weights of a run, in the run's key space."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from keynet.training.average import key_weights
from keynet.training.run import CONFIG, UNREADABLE, first_difference

# What makes a key beside weights: these options, but for those that only training sees.
PARTS = ("encoder", "adapter", "aligner", "fusion", "hash_head")
OF_DATA = ("image_size", "max_tokens", "long_text")
TRAINING_ONLY = "dropout"


class StartError(ValueError):
    """A run that a key model cannot start from; the message says why."""


def start_from(
    model: nn.Module,
    run: str | Path,
    tokenizer_json: str,
    may_lack: str,
    present: str | Path | None = None,
) -> str:
    """Load the key model of a run and return 16 hex digits of its weights.

    Args:
        model: Of the same composition, but for its ``may_lack``.
        run: Run directory, with ``checkpoints/last.ckpt`` and ``export/tokenizer.json``.
        tokenizer_json: Of this training; it must be the run's.
        may_lack: Part of the model that the run may lack where it starts as the identity.
        present: Run directory of this training: where both have a configuration, what makes a key
            must be equal in them.

    Raises:
        StartError: When the run cannot be read or does not fit.
    """
    checkpoint = Path(run) / "checkpoints" / "last.ckpt"
    tokenizer = Path(run) / "export" / "tokenizer.json"
    try:
        content: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
        weights = key_weights(content)
        known = tokenizer.read_text(encoding="utf-8")
    except UNREADABLE as error:
        raise StartError(
            f"start_from={run}: no finished run is there ({' '.join(str(error).split())[:120]}); "
            "give a run directory, with checkpoints and export"
        ) from error
    if known != tokenizer_json:
        raise StartError(
            f"start_from={run}: its tokenizer is another; give the data and the encoder it had"
        )
    if present is not None:
        _compare(Path(run) / CONFIG, Path(present) / CONFIG)
    own = model.state_dict()
    wrong = sorted(
        {n for n in own if n not in weights and not n.startswith(f"{may_lack}.")}
        | {n for n, t in weights.items() if n not in own or own[n].shape != t.shape}
    )
    if wrong:
        raise StartError(
            f"start_from={run}: it is of another composition, which {len(wrong)} weights tell, "
            f"such as {wrong[0]}; give the same encoder, aligner, fusion and hash_head"
        )
    lacking = [name for name in own if name not in weights]
    if lacking:
        adapter, width = model.get_submodule(may_lack), own[lacking[0]].shape[-1]
        features = torch.randn(2, width, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            if not torch.equal(adapter(features), features):
                raise StartError(
                    f"start_from={run}: it has no {may_lack}, and this one starts with random "
                    "weights, which moves every key; take adapter=low_rank, or none"
                )
    model.load_state_dict(weights, strict=False)
    return weights_digest(weights)


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return 16 hex digits of weights by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(content.numpy().tobytes())
    return digest.hexdigest()[:16]


def _compare(before: Path, now: Path) -> None:
    if not (before.exists() and now.exists()):
        return
    known, own = _key_options(before), _key_options(now)
    if known["adapter"]["_target_"] != own["adapter"]["_target_"]:  # weights tell whether it may be
        del known["adapter"], own["adapter"]
    changed = first_difference(known, own)
    if changed:
        raise StartError(
            f"start_from={before.parent}: {changed}, which makes other keys of the same weights; "
            "give the options it had"
        )


def _key_options(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        chosen = {part: _for_keys(config[part]) for part in PARTS}
        return chosen | {"data": {name: config["data"][name] for name in OF_DATA}}
    except (OSError, yaml.YAMLError, UnicodeDecodeError, LookupError, TypeError) as error:
        raise StartError(f"{path} is damaged; start from another run") from error


def _for_keys(options: Any) -> Any:
    if not isinstance(options, dict):
        return options
    return {name: _for_keys(value) for name, value in options.items() if name != TRAINING_ONLY}
