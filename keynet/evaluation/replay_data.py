"""The requests of a replay with their labels, and the unit rows that each way to key them gives."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keynet.evaluation import baselines
from keynet.evaluation.evaluate import EvaluationSource
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.replay_keys import Arrays, encoded_keys, encoded_parts
from keynet.export.loader import KeyEncoder
from keynet.replay.cache_replay import KeyedRequests
from keynet.types import Request

SPLITS = ("calibration", "test")


@dataclass(frozen=True)
class ReplayData:
    """Requests of the calibration and the test split, and what a key model makes of them.

    Args:
        name: Of the data.
        encoder: The exported key model.
        requests: By split.
        labels: By split.
        folder: Where what was encoded is kept.
        image_size: Pixels a side for the packaged image encoder of the baselines.
    """

    name: str
    encoder: KeyEncoder
    requests: dict[str, list[Request]]
    labels: dict[str, Labels]
    folder: Path
    image_size: int

    @staticmethod
    def of(
        source: EvaluationSource, encoder: KeyEncoder, folder: Path, image_size: int = 224
    ) -> ReplayData:
        """Return the requests of a data source.

        Raises:
            ValueError: It has no requests with image and text in one of the splits, or several
                scopes.
        """
        requests = {split: source.requests(split) for split in SPLITS}
        labels = {split: Labels.of(found) for split, found in requests.items()}
        for split, found in labels.items():
            found.require_one_scope("a replay of traces")
            if not (found.modalities == "image+text").any():
                raise ValueError(
                    f"data {source.name} has no requests with image and text in its {split} split; "
                    "choose data=emoji or data=easy_vqa"
                )
        return ReplayData(source.name, encoder, requests, labels, folder, image_size)

    def keys(self, split: str) -> Arrays:
        """Return what the key model makes of a split: see ``encoded_keys``."""
        return self._once("keys", split)

    def parts(self, split: str) -> Arrays:
        """Return what the packaged encoders make of a split: see ``encoded_parts``."""
        return self._once("parts", split)

    @functools.cache  # noqa: B019 - a replay's data live as long as the program
    def _once(self, what: str, split: str) -> Arrays:
        requests, labels = self.requests[split], self.labels[split]
        if what == "keys":
            return encoded_keys(self.encoder, requests, labels, self.folder)
        return encoded_parts(requests, labels, self.folder, self.image_size)

    def __hash__(self) -> int:
        return id(self)

    def rows(self, method: str, split: str) -> NDArray[np.float32]:
        """Return unit rows [N, D] of a way to key the requests of a split.

        ``aligned`` is the key model's; ``fused_sha256`` the digest of its vector; ``ids`` the name
        of the picture file and the text, hashed; others are those of ``baselines``.

        Raises:
            ValueError: It is not known.
        """
        requests = self.requests[split]
        if method == "aligned":
            return np.asarray(self.keys(split)["key"])
        if method == "fused_sha256":
            vectors = self.keys(split)["key"]
            return baselines.identity_rows(
                [hashlib.sha256(row.tobytes()).digest() for row in vectors]
            )
        if method == "ids":
            return baselines.identity_rows(_named(requests, self.labels[split].picture))
        if method in ("exact", "text_only", "image_only", "perceptual_hash"):
            rows: NDArray[np.float32] = getattr(baselines, method)(requests)
            return rows
        if method == "concat_l2":
            parts = self.parts(split)
            return baselines.unit_rows(np.concatenate([parts["image"], parts["text"]], axis=1))
        raise ValueError(f"no way to key called {method!r}")

    def pool(self, method: str, rows: NDArray[np.float32] | None = None) -> KeyedRequests:
        """Return the test split's requests with the keys of a method, or with rows of its own."""
        labels = self.labels["test"]
        if method == "aligned" and rows is None:
            keys = self.keys("test")
            return KeyedRequests(
                self.encoder.space,
                keys["key"], keys["code"], keys["alignment"], labels.group, labels.modalities,
            )  # fmt: skip
        rows = self.rows(method, "test") if rows is None else rows
        return KeyedRequests.of_rows(method, rows, labels.group, labels.modalities)


def _named(requests: Sequence[Request], picture: Ints) -> list[bytes]:
    """Return what a client would send as ids: names of pictures, whatever their encoding."""
    return [
        baselines.text_digest(None if name < 0 else str(name)) + baselines.text_digest(r.text)
        for r, name in zip(requests, picture.tolist(), strict=True)
    ]
