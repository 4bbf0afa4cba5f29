from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keynet.evaluation.labels import Labels
from keynet.evaluation.replay_keys import encoded_keys
from keynet.types import KeyOutput, KeySpace, Request


class Encoder:
    """Counts what it is asked to encode."""

    def __init__(self, fingerprint: str = "0" * 16) -> None:
        self.space, self.asked = KeySpace("toy", 1, 4, 64, fingerprint), 0

    def preprocessor(self, requests: list[Request], first: int) -> Any:
        self.asked += len(requests)
        numbers = torch.tensor([float(len(r.text or "")) for r in requests])
        return (numbers,) * 4

    def run(self, numbers: torch.Tensor, *_: Any) -> KeyOutput:
        rows = torch.stack([numbers, numbers * 0, numbers * 0, numbers * 0], 1)
        logits = torch.where(torch.arange(64) < numbers[:, None], 1.0, -1.0)
        return KeyOutput(rows, rows, rows, logits, numbers * torch.nan)


REQUESTS = [Request(text="x" * (1 + at % 9), group=str(at % 9)) for at in range(150)]


def test_requests_are_encoded_once_for_a_key_space_and_their_content(tmp_path: Path) -> None:
    labels, encoder = Labels.of(REQUESTS), Encoder()
    first = encoded_keys(encoder, REQUESTS, labels, tmp_path)  # type: ignore[arg-type]
    assert first["key"][:, 0].tolist() == [1 + at % 9 for at in range(150)]
    assert first["code"][2].tolist() == [0b11100000] + [0] * 7
    again = encoded_keys(encoder, REQUESTS, labels, tmp_path)  # type: ignore[arg-type]
    assert encoder.asked == 150
    assert all(np.array_equal(first[n], again[n], equal_nan=True) for n in first)
    encoded_keys(encoder, REQUESTS[:9], Labels.of(REQUESTS[:9]), tmp_path)  # type: ignore[arg-type]
    assert encoder.asked == 159
    other = Encoder("1" * 16)
    encoded_keys(other, REQUESTS, labels, tmp_path)  # type: ignore[arg-type]
    assert other.asked == 150


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    labels = Labels.of(REQUESTS)
    encoded_keys(Encoder(), REQUESTS, labels, tmp_path)  # type: ignore[arg-type]
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"0" * 20)
    with pytest.raises(ValueError, match=r"is damaged .*; remove it"):
        encoded_keys(Encoder(), REQUESTS, labels, tmp_path)  # type: ignore[arg-type]
