from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keynet.evaluation.ablation import drifting_stream, paired_difference, single_pass
from keynet.evaluation.labels import Labels
from keynet.types import Request

VENDORS = ("first", "second")


def stream(vendors: tuple[str, ...] = ("",), things: int = 400, visits: int = 2) -> list[Request]:
    made = []
    for vendor in vendors:
        for thing in range(things):
            for visit in range(visits):
                tags = {"picture": f"{vendor}{thing}", "vendor": vendor, "family": "name"}
                made.append(
                    Request(
                        image=f"{vendor}{thing}-{visit}".encode(),
                        text=f"what, {visit}",
                        group=str(thing),
                        entity=str(thing),
                        intent="name",
                        response=str(thing),
                        tags=tags,
                    )
                )
    return made


def keys_of(requests: list[Request], labels: Any, noise: float = 0.01) -> np.ndarray:
    """Unit rows near a centre of each label."""
    rng = np.random.default_rng(0)
    centre = {
        label: rng.standard_normal(64) for label in dict.fromkeys(labels(r) for r in requests)
    }
    rows = np.stack([centre[labels(r)] + noise * rng.standard_normal(64) for r in requests])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_a_perfect_key_hits_as_the_oracle() -> None:
    requests = stream()
    keys, labels = keys_of(requests, lambda r: r.group), Labels.of(requests)
    found = single_pass(keys, labels, keys, labels)
    assert found[:3] == (0.5, 0.0, 1.0)
    assert len(found.hits) == 400 and np.mean(list(found.hits.values())) == pytest.approx(0.5)


def test_without_a_threshold_nothing_is_served() -> None:
    requests = stream()
    keys, labels = keys_of(requests, lambda r: "all", noise=1.0), Labels.of(requests)
    found = single_pass(keys, labels, keys, labels)
    assert (found.replay_hit_rate, found.hits_of_oracle) == (0.0, 0.0)
    assert np.isnan(found.replay_false_hit_rate)
    assert set(found.hits.values()) == {0.0}


def test_vendors_have_passes_of_their_own() -> None:
    requests = stream(VENDORS)
    keys, labels = keys_of(requests, lambda r: r.group), Labels.of(requests)
    found = single_pass(keys, labels, keys, labels)
    assert found.replay_hit_rate == 0.5  # a pass over both would hit .75
    assert len(found.hits) == 800


def test_after_the_change_entries_keep_the_keys_they_had() -> None:
    requests = stream(VENDORS)
    labels = Labels.of(requests)
    apart = keys_of(requests, lambda r: r.tags["vendor"] + str(r.group))
    together = keys_of(requests, lambda r: r.group)
    alone = drifting_stream(apart, labels, apart, apart, labels, VENDORS)
    # A few of the first vendor's drawings are served by chance.
    assert alone.hit_rate_before == 0.5 and alone.hit_rate_after == pytest.approx(0.5, abs=0.01)
    met = drifting_stream(together, labels, together, together, labels, VENDORS)
    assert (met.hit_rate_before, met.hit_rate_after) == (0.5, 1.0)
    # A model whose space moved with the change finds nothing of before.
    moved = drifting_stream(together, labels, together, -together, labels, VENDORS)
    assert moved.hit_rate_after == pytest.approx(0.5, abs=0.01)
    assert len(met.hits) == 400


def test_paired_differences() -> None:
    rng = np.random.default_rng(0)
    base = dict(enumerate(rng.random(200)))
    better = {p: min(1.0, hit + 0.1) for p, hit in base.items()}
    mean, low, high = paired_difference([better, better], [base, base])
    assert low < mean < high and low > 0.05
    assert paired_difference([base], [base]) == (0.0, 0.0, 0.0)
    assert paired_difference([better], [base]) == paired_difference([better], [base])
    with pytest.raises(ValueError, match="same pictures"):
        paired_difference([base], [{1: 0.5}])
