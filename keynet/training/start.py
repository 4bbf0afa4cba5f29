"""A key model that starts from the weights of a run, in the run's key space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from keynet.training.run import UNREADABLE

PREFIX = "model."


class StartError(ValueError):
    """A run that a key model cannot start from; the message says why."""


def start_from(model: nn.Module, run: str | Path, tokenizer_json: str, may_lack: str) -> None:
    """Load the key model of a run.

    Args:
        model: Of the same composition, but for its ``may_lack``.
        run: Run directory, with ``checkpoints/last.ckpt`` and ``export/tokenizer.json``.
        tokenizer_json: Of this training; it must be the run's.
        may_lack: Part of the model that the run may lack where it starts as the identity.

    Raises:
        StartError: When the run cannot be read or does not fit.
    """
    checkpoint = Path(run) / "checkpoints" / "last.ckpt"
    tokenizer = Path(run) / "export" / "tokenizer.json"
    try:
        content: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
        state = content["state_dict"]
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
    weights = {n.removeprefix(PREFIX): t for n, t in state.items() if n.startswith(PREFIX)}
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
