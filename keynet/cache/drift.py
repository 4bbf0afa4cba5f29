"""How far recent keys have drifted from those that a threshold was calibrated on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keynet.cache.acceptance import AcceptanceError
from keynet.types import Key, KeySpace

WINDOW = 256  # keys, as in the source
DIRECTIONS = 8  # the reference varies most in
LEAST = 4 * DIRECTIONS  # keys of a reference

Floats = NDArray[np.float64]


class Drift:
    """The KL divergence of a sliding window of keys from a reference.

    Both are taken as Gaussians with independent coordinates along the 8 directions in which the
    reference varies most: sum of (v + m^2 - 1 - ln v) / 2 over them, m the window's mean and v its
    variance, where the reference has mean 0 and variance 1. Without any drift it is about 0.03 for
    256 independent keys, the price of estimating 16 numbers from them; over all 256 directions of
    a key it would be about 1. Until the window is full, no drift is known: 0.

    Args:
        reference: Unit rows [N, D]: keys of the calibration data, say.
        space: Key space of the reference.
        window: Keys in the window, at least 2.

    Raises:
        AcceptanceError: The reference is too small, or not of the key space's width.

    Source: SPEC C4 has a KL divergence over 256 embeddings and does not say how it is estimated.
    """

    def __init__(self, reference: ArrayLike, space: KeySpace, window: int = WINDOW) -> None:
        rows = np.asarray(reference, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != space.dim or len(rows) < LEAST:
            raise AcceptanceError(
                f"reference has shape {rows.shape}; give at least {LEAST} keys of {space.name}, "
                f"[N, {space.dim}]"
            )
        if not np.isfinite(rows).all():
            raise AcceptanceError("reference holds NaN or infinity; give keys of unit norm")
        if window < 2:
            raise AcceptanceError(f"window is {window}; give at least 2 keys")
        self._space, self._size = space, window
        self._mean = rows.mean(axis=0)
        _, deviation, directions = np.linalg.svd(rows - self._mean, full_matrices=False)
        deviation = deviation[:DIRECTIONS] / np.sqrt(len(rows))
        if len(deviation) < DIRECTIONS or deviation[-1] < 1e-6:
            raise AcceptanceError(
                f"reference varies in fewer than {DIRECTIONS} directions; give other keys"
            )
        self._directions = (directions[:DIRECTIONS] / deviation[:, None]).T  # [D, 8]
        self._window = np.zeros((0, DIRECTIONS))
        self._value: float | None = 0.0

    def observe(self, key: Key) -> None:
        """Take a key into the window.

        Raises:
            AcceptanceError: It is of another key space.
        """
        self.require_own(key)
        at = (key.vector.astype(np.float64) - self._mean) @ self._directions
        self._window = np.concatenate([self._window[-self._size + 1 :], at[None]])
        self._value = None

    def require_own(self, key: Key) -> None:
        """Raise AcceptanceError for a key of another key space."""
        if key.space != self._space:
            raise AcceptanceError(
                f"key is of key space {key.space.fingerprint}, the drift's reference of "
                f"{self._space.fingerprint}; make one for each, see PerKeySpace"
            )

    def kl(self) -> float:
        """Return the divergence in nats."""
        if self._value is None:
            full = len(self._window) == self._size
            self._value = _kl_from_standard(self._window) if full else 0.0
        return self._value

    def state(self) -> dict[str, Any]:
        """Return the window."""
        return {"window": self._window.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a window."""
        window = np.asarray(state["window"], dtype=np.float64).reshape(-1, DIRECTIONS)
        self._window, self._value = window[-self._size :], None


def _kl_from_standard(rows: Floats) -> float:
    """Divergence of rows [n, d], as independent Gaussians, from standard ones."""
    mean, variance = rows.mean(axis=0), np.maximum(rows.var(axis=0), 1e-12)
    return float(0.5 * (variance + mean**2 - 1 - np.log(variance)).sum())
