"""The diffusion prior of a training: fitted to the keys that the model has when it begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aligners.diffusion_prior import DiffusionPrior
from keynet.training.ranks import ranks
from keynet.training.start import StartError

MOST_KEYS = 20_000
CHUNK = 240
log = logging.getLogger(__name__)


def fitted_prior(
    model: Any,
    batches: Any,
    path: Path,
    settings: Mapping[str, Any],
    seed: int,
    of: str,
    resumed: bool,
) -> DiffusionPrior:
    """Return the prior of a training, fitted and written to ``path`` where it begins.

    A training that goes on takes the one at ``path``: its keys have moved since.

    Args:
        model: A key model that is trained: the prior is of its keys as they are now.
        batches: Training requests by indices (``data.datamodule.RequestBatches``).
        path: Where it is kept.
        settings: Of ``DiffusionPrior.fit``.
        seed: Of the fit, and of the requests it is made on.
        of: Digest of the weights that the training starts from; the file must name them.
        resumed: Whether the training goes on.

    Raises:
        StartError: When the file is of a model with other weights.
    """
    if resumed and path.exists():
        prior = DiffusionPrior.load(path)
        if prior.of != of:
            raise StartError(
                f"{path} is not of the weights that this training started from; remove it, and one "
                "is fitted to the keys as they are now, or give another run_dir"
            )
        return prior
    generator = torch.Generator().manual_seed(seed)
    distinct = dict[tuple[int, int], int]()
    for n in torch.randperm(len(batches.requests), generator=generator).tolist():
        distinct.setdefault((int(batches.picture_id[n]), int(batches.text_id[n])), n)
    chosen = list(distinct.values())[:MOST_KEYS]
    was_training, outputs = model.training, []
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        for first in range(0, len(chosen), CHUNK):
            batch = [tensor.to(device) for tensor in batches[chosen[first : first + CHUNK]][:6]]
            outputs.append(model(*batch))
    model.train(was_training)
    key, image, text = (torch.cat([o[n] for o in outputs]).float().cpu() for n in range(3))
    prior = DiffusionPrior(key_dim=key.shape[1], condition_dim=image.shape[1])
    log.info("prior: fitting to %d keys", len(key))
    pictures = batches.picture_id[chosen]
    figures = prior.fit(key, image, text, things=pictures, seed=seed, **settings)
    log.info(
        "prior: error on held-out keys %.3f; with other requests' conditions %.3f, of zero %.3f",
        figures["noise_error"], figures["shuffled_error"], figures["zero_error"],
    )  # fmt: skip
    prior.of = of
    if ranks()[0] == 0:  # others have fitted the same
        prior.save(path)
    return prior
