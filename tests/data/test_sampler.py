from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from data.easy_vqa import EasyVQA
from data.sampler import HardNegativeBatchSampler
from keynet.types import Request

SIZE = 48


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return EasyVQA().requests("train")[:3000]


def sampler(requests: list[Request], seed: int = 0, batches: int = 5) -> HardNegativeBatchSampler:
    return HardNegativeBatchSampler(requests, batch_size=SIZE, batches=batches, seed=seed)


def shares(requests: list[Request], batches: list[list[int]]) -> dict[str, float]:
    """Of the requests of the batches, those that have such a partner in their batch."""
    counts = dict.fromkeys(("positive", "other_picture_positive", "question", "picture"), 0)
    for batch in batches:
        found = [requests[index] for index in batch]
        for i, r in enumerate(found):
            others = [o for j, o in enumerate(found) if batch[j] != batch[i]]
            equivalent = [o for o in others if o.group == r.group]
            counts["positive"] += bool(equivalent)
            counts["other_picture_positive"] += any(o.image != r.image for o in equivalent)
            counts["question"] += any(o.image == r.image and o.intent != r.intent for o in others)
            counts["picture"] += any(o.intent == r.intent and o.group != r.group for o in others)
    return {name: count / sum(map(len, batches)) for name, count in counts.items()}


def test_a_batch_is_a_function_of_seed_epoch_and_number(requests: list[Request]) -> None:
    first, again = sampler(requests), sampler(requests)
    first.set_epoch(3)
    batches = list(first)
    again.set_epoch(3)
    assert list(again) == batches
    assert list(again) == batches  # a second walk through the same epoch
    assert sampler(requests).batch(np.random.default_rng([0, 3, 4])) == batches[4]
    longer = sampler(requests, batches=9)
    longer.set_epoch(3)
    assert list(longer)[:5] == batches


def test_epochs_numbers_and_seeds_differ(requests: list[Request]) -> None:
    one = sampler(requests)
    batches = list(one)
    assert len(set(map(tuple, batches))) == len(one) == 5
    one.set_epoch(1)
    assert not set(map(tuple, one)) & set(map(tuple, batches))
    assert not set(map(tuple, sampler(requests, seed=1))) & set(map(tuple, batches))


def test_sizes_and_ranges(requests: list[Request]) -> None:
    for batch in sampler(requests):
        assert len(batch) == SIZE
        assert all(0 <= index < len(requests) for index in batch)
        assert all(type(index) is int for index in batch)


def test_positives_and_hard_negatives_in_easy_vqa(requests: list[Request]) -> None:
    found = shares(requests, list(sampler(requests, batches=20)))
    assert found["positive"] > 0.55
    assert found["other_picture_positive"] > 0.5
    assert found["question"] > 0.9
    assert found["picture"] > 0.55


def concepts() -> list[Request]:
    """As in emoji, groups are small: 200 concepts, two encodings, two questions."""
    return [
        Request(
            image=f"{concept} {encoding}".encode(), text=intent, group=f"{intent} {concept}",
            entity=str(concept), intent=intent, tags={"picture": str(concept)},
        )
        for concept in range(200)
        for encoding in range(2)
        for intent in ("name", "kind")
    ]  # fmt: skip


def test_positives_and_hard_negatives_beyond_chance() -> None:
    made = concepts()
    found = shares(made, list(sampler(made, batches=20)))
    rng = np.random.default_rng(0)
    chance = shares(made, rng.integers(len(made), size=(20, SIZE)).tolist())
    assert chance["positive"] < 0.1
    assert found["positive"] > 0.3
    assert chance["question"] < 0.1
    assert found["question"] > 0.85


def test_negations_meet_in_a_batch(requests: list[Request]) -> None:
    met = 0
    for batch in sampler(requests, batches=10):
        asked = {
            (requests[i].tags["family"], requests[i].tags["argument"], requests[i].tags["negated"])
            for i in batch
        }
        met += any((f, a, "1") in asked and (f, a, "0") in asked for f, a, _ in asked)
    assert met >= 9


def test_every_request_is_reached(toy_source) -> None:
    toy = toy_source.requests("train")
    made = HardNegativeBatchSampler(toy, batch_size=8, batches=200, seed=0)
    assert {index for batch in made for index in batch} == set(range(len(toy)))


def test_near_concepts_are_preferred() -> None:
    """400 concepts in Unicode order, one question: half of the other pictures come from nearby."""
    made = [
        Request(
            image=str(n).encode(), text="what is it", group=str(n), entity=str(n), intent="name",
            tags={"picture": str(n), "order": str(1000 + n)},
        )
        for n in np.random.default_rng(0).permutation(400)
    ]  # fmt: skip
    number = [int(r.group or -1) for r in made]
    near = 0
    for batch in HardNegativeBatchSampler(made, batch_size=6 * 10, batches=20, seed=0):
        anchors, others = batch[0::6], batch[4::6]
        near += sum(abs(number[a] - number[o]) <= 12 for a, o in zip(anchors, others, strict=True))
    assert near / 200 == pytest.approx(0.5 + 0.5 * 24 / 400, abs=0.1)


def test_requests_without_any_partner_still_make_a_batch() -> None:
    lonely = [Request(text=f"t{n}", group=f"g{n}", intent=f"i{n}") for n in range(3)]
    (batch,) = HardNegativeBatchSampler(lonely, batch_size=8, batches=1, seed=0)
    assert len(batch) == 8
    assert set(batch) <= {0, 1, 2}


def test_a_batch_too_small_for_its_parts(requests: list[Request]) -> None:
    with pytest.raises(ValueError, match="batch_size=7: expected at least 8"):
        HardNegativeBatchSampler(requests, batch_size=7, batches=1, seed=0)


def test_partners_are_of_the_scope() -> None:
    made = [
        replace(request, scope={"tenant": tenant})
        for request in concepts()
        for tenant in ("a", "b")
    ]
    for batch in sampler(made, batches=10):
        for anchor, equivalent, other in zip(batch[0::6], batch[2::6], batch[4::6], strict=True):
            one, same, negative = made[anchor], made[equivalent], made[other]
            assert one.scope == same.scope == negative.scope
            assert one.group == same.group != negative.group


def test_one_scope_draws_as_none_does(requests: list[Request]) -> None:
    named = [replace(request, scope={"tenant": "a"}) for request in requests]
    assert list(sampler(named)) == list(sampler(requests))
