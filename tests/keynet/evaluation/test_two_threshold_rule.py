from __future__ import annotations

import numpy as np

from keynet.evaluation.labels import Labels
from keynet.evaluation.settings import JudgeSettings
from keynet.evaluation.two_threshold_rule import TwoThresholds, fit_two_thresholds
from keynet.replay.two_thresholds import PairedSimilarities, replay_two_thresholds
from keynet.types import Request

SETTINGS = JudgeSettings(budgets=(0.01, 0.05), wholes=2, halves=4)
ENTITIES = 60


def labels_of() -> Labels:
    return Labels.of(
        [
            Request(
                image=f"{entity} {visit}".encode(), text=f"{question}", response="r",
                group=f"{entity} {question}", entity=str(entity), intent=str(question),
                tags={"picture": str(entity)},
            )
            for entity in range(ENTITIES)
            for question in range(2)
            for visit in range(4)
        ]
    )  # fmt: skip


LABELS = labels_of()


def rows_of(values: np.ndarray, noise: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((int(values.max()) + 1, 24))[values]
    rows += noise * rng.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


IMAGE, TEXT = rows_of(LABELS.entity, 0.5, 1), rows_of(LABELS.intent, 0, 2)


def replayed(limits: TwoThresholds) -> tuple[int, int]:
    assert limits.a is not None and limits.b is not None
    pairs = PairedSimilarities.of(IMAGE, TEXT)
    order = np.random.default_rng(5).permutation(len(LABELS))
    outcome = replay_two_thresholds(pairs, LABELS.group, order, limits.a, limits.b).outcome
    return int((outcome == 1).sum()), int((outcome == 2).sum())


def test_the_pair_keeps_the_budget_and_both_parts_are_needed() -> None:
    found = fit_two_thresholds(IMAGE, TEXT, LABELS, SETTINGS, 0.05)
    hits, false = replayed(found)
    assert hits > 200 and false <= 0.05 * (hits + false)
    for looser in (found._replace(a=-1.0), found._replace(b=-1.0)):
        hits, false = replayed(looser)
        assert false > 0.05 * (hits + false)


def test_a_larger_budget_serves_no_less() -> None:
    strict, loose = (fit_two_thresholds(IMAGE, TEXT, LABELS, SETTINGS, b) for b in (0.05, 0.2))
    assert replayed(loose)[0] >= 0.98 * replayed(strict)[0]


def test_too_few_questions_give_no_pair_but_a_reason() -> None:
    found = fit_two_thresholds(IMAGE, TEXT, LABELS, SETTINGS, 0.01)
    assert (found.a, found.b) == (None, None)
    assert found.reason.startswith("needs 299 distinct questions served for 0.01")


def test_of_the_pairs_in_budget_that_of_most_hits_is_taken() -> None:
    # Each question comes with a picture of its own, so that a strict look at it needs no text.
    own = np.unique(np.stack([LABELS.entity, LABELS.intent]), axis=1, return_inverse=True)[1]
    image = IMAGE + 0.6 * rows_of(own.reshape(-1), 0, 3)
    image = (image / np.linalg.norm(image, axis=1, keepdims=True)).astype(np.float32)
    found = fit_two_thresholds(image, TEXT, LABELS, SETTINGS, 0.1)
    blind = fit_two_thresholds(image, np.ones_like(TEXT) / 24**0.5, LABELS, SETTINGS, 0.1)
    assert found.a is not None and blind.a is not None  # the text can be left out
    assert found.b == 1 and found.a < blind.a  # and is better asked
