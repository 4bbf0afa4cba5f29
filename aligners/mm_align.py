"""MM-Align head: any set of modality embeddings into one unit key space.

Source: SPEC T1 and K1 (L2-normalise each modality, project all into one shared subspace).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Head(nn.Module):
    """What aligners share: names, masks and checks; each says how a modality is projected."""

    def __init__(self, input_dims: Mapping[str, int]) -> None:
        super().__init__()
        self.input_dims = dict(input_dims)

    def project(self, name: str, embedding: Tensor) -> Tensor:
        """Return one modality's embeddings [B, input_dims[name]] as unit vectors [B, D]."""
        raise NotImplementedError

    def forward(
        self, embeddings: Mapping[str, Tensor], masks: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return each modality [B, D]: unit norm where present, zero where absent.

        Args:
            embeddings: By modality, float [B, input_dims[name]]; nothing depends on what lies under
                a false mask. A modality that is left out is absent from every row.
            masks: By modality, bool [B], true where present.

        Raises:
            ValueError: An unknown modality, no modality at all, a wrong shape or dtype.
        """
        if not (torch.jit.is_tracing() or torch.compiler.is_compiling()):
            self._check(embeddings, masks)
        aligned = {}
        for name in self.input_dims:
            if name in embeddings:
                absent = ~masks[name].unsqueeze(-1)
                # Any finite row but zero, so that no gradient comes near a division by zero.
                unit = self.project(name, embeddings[name].masked_fill(absent, 1.0))
                aligned[name] = unit.masked_fill(absent, 0.0)
        some = next(iter(aligned.values()))
        return {n: aligned[n] if n in aligned else torch.zeros_like(some) for n in self.input_dims}

    def _check(self, embeddings: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
        known = ", ".join(self.input_dims)
        for name in (*embeddings, *masks):
            if name not in self.input_dims:
                raise ValueError(f"unknown modality {name!r}: this head has {known}")
        if not embeddings:
            raise ValueError(f"no embeddings given: expected at least one of {known}")
        rows, dtype = next(iter(embeddings.values())).shape[:1], next(self.parameters()).dtype
        for name, given in embeddings.items():
            found, wanted = f"{given.dtype} {list(given.shape)}", [*rows, self.input_dims[name]]
            if list(given.shape) != wanted:
                raise ValueError(f"{name} embeddings are {found}: expected {wanted}")
            cast = given.is_floating_point() and torch.is_autocast_enabled(given.device.type)
            if given.dtype != dtype and not cast:
                raise ValueError(f"{name} embeddings are {found}: cast them to {dtype}")
            if name not in masks:
                raise ValueError(f"{name} has embeddings but no mask: give both or neither")
        for name, mask in masks.items():
            if mask.dtype != torch.bool or mask.shape != rows:
                found = f"{mask.dtype} {list(mask.shape)}"
                raise ValueError(f"{name} mask is {found}: expected torch.bool {list(rows)}")
            if name not in embeddings and mask.any():
                raise ValueError(f"{name} has no embeddings, but its mask says it is present")


class MMAlign(Head):
    """One projection per modality onto the unit sphere of a shared space.

    Args:
        input_dims: Width of each modality's embedding, by name.
        key_dim: Width D of the shared space.
        hidden_dim: Width of the hidden layer; 0 makes each projection linear.
        dropout: Share of the embeddings' entries left out in training; what keeps a projection of
            wide frozen embeddings from learning its training pairs by heart.
    """

    def __init__(
        self,
        *,
        input_dims: Mapping[str, int],
        key_dim: int,
        hidden_dim: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(input_dims)
        self.dropout = nn.Dropout(dropout)
        self.projections = _layers(input_dims, key_dim, hidden_dim)

    def project(self, name: str, embedding: Tensor) -> Tensor:
        """Return one modality's embeddings [B, input_dims[name]] as unit vectors [B, D]."""
        unit = self.dropout(F.normalize(embedding, dim=-1))
        # At unit variance of its entries, not of its length, a layer starts well scaled.
        return F.normalize(self.projections[name](unit * unit.shape[-1] ** 0.5), dim=-1)

    @torch.no_grad()
    def frozen(self) -> LightAlign:
        """Return the light form: a copy that gives the same vectors."""
        light = LightAlign(input_dims={}, key_dim=0)  # no random weights to throw away
        light.input_dims, light.layers = dict(self.input_dims), copy.deepcopy(self.projections)
        for layer in light.layers.values():
            first = layer if isinstance(layer, nn.Linear) else layer[0]
            first.weight.mul_(first.in_features**0.5)
        return light.requires_grad_(False).eval()


class LightAlign(Head):
    """A head without dropout and gradients, to stand frozen in front of the cache.

    One ``Linear(input_dims[name], key_dim)`` per modality. It holds the scale of ``MMAlign`` in its
    weights, hence other names in files: the weights of one must not be loaded into the other.

    Args:
        input_dims: Width of each modality's embedding, by name.
        key_dim: Width D of the shared space.
        hidden_dim: Width of the hidden layer; 0 makes each layer linear.
    """

    def __init__(self, *, input_dims: Mapping[str, int], key_dim: int, hidden_dim: int = 0) -> None:
        super().__init__(input_dims)
        self.layers = _layers(input_dims, key_dim, hidden_dim)
        self.requires_grad_(False).eval()

    def project(self, name: str, embedding: Tensor) -> Tensor:
        """Return one modality's embeddings [B, input_dims[name]] as unit vectors [B, D]."""
        return F.normalize(self.layers[name](F.normalize(embedding, dim=-1)), dim=-1)


def _layers(input_dims: Mapping[str, int], key_dim: int, hidden_dim: int) -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            name: nn.Linear(dim, key_dim)
            if hidden_dim == 0
            else nn.Sequential(
                nn.Linear(dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, key_dim)
            )
            for name, dim in input_dims.items()
        }
    )
