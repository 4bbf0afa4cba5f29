from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from keynet.training.losses import (
    CaptionContrast,
    CodeAffinity,
    CodeContrast,
    Consistency,
    Contrast,
    Decorrelation,
    instances,
    prefixes,
    sign_straight_through,
    supervised_contrastive,
)
from keynet.types import KeyOutput, TrainingBatch

GROUP = torch.tensor([0, 1, 0, 2, 1, 0, 3, 3])
ENTITY = torch.tensor([0, 0, 0, 1, 1, 2, -1, -1])
# As the entities, but that entity 0 is shown by two pictures.
TWO_PICTURES = torch.tensor([0, 0, 3, 1, 1, 2, -1, -1])
INTENT = torch.tensor([0, 1, 0, 1, 1, 0, -1, 2])
DESCRIBED = torch.tensor([1, 0, 1, 1, 0, 1, 0, 0]).bool()  # of the entities 0, 0, 1, 2


def unit(count: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, width, generator=generator), dim=1)


def output(
    key: Tensor | None = None, logits: Tensor | None = None, image: Tensor | None = None
) -> KeyOutput:
    key = unit(8, 16) if key is None else key
    logits = unit(len(key), 64, seed=1) if logits is None else logits
    image = unit(len(key), 16, seed=2) if image is None else image
    return KeyOutput(key, image, key, logits, torch.zeros(len(key)))


def batch(
    group: Tensor = GROUP,
    entity: Tensor = ENTITY,
    image_mask: Tensor | None = None,
    intent: Tensor = INTENT,
    image_index: Tensor | None = None,
    described: Tensor = DESCRIBED,
    original: Tensor | None = None,
) -> TrainingBatch:
    nothing = torch.zeros(0)
    mask = entity >= 0 if image_mask is None else image_mask
    original = entity if original is None else original
    encoded = torch.arange(len(group)) if image_index is None else image_index
    return TrainingBatch(
        nothing, mask, nothing, nothing, encoded, nothing, group, entity, original, intent,
        nothing, nothing, described, torch.zeros_like(group),
    )  # fmt: skip


def plain_loop(
    rows: Tensor, group: Tensor, temperature: float, left_out: tuple[tuple[int, int], ...] = ()
) -> float:
    """Khosla et al., eq. 2, term by term."""
    losses = []
    for i in range(len(rows)):
        others = [a for a in range(len(rows)) if a != i and not {(a, i), (i, a)} & set(left_out)]
        total = sum(math.exp(float(rows[i] @ rows[a]) / temperature) for a in others)
        positives = [p for p in others if group[p] == group[i]]
        if positives:
            terms = [
                -math.log(math.exp(float(rows[i] @ rows[p]) / temperature) / total)
                for p in positives
            ]
            losses.append(sum(terms) / len(terms))
    return sum(losses) / len(losses)


def test_straight_through_signs_and_their_gradient() -> None:
    logits = torch.tensor([-2.0, -0.0, 0.0, 1e-9, 3.0], requires_grad=True)
    code = sign_straight_through(logits)
    assert code.tolist() == [-1, 1, 1, 1, 1]
    code.sum().backward()
    torch.testing.assert_close(logits.grad, 1 - torch.tanh(logits.detach()) ** 2)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_supervised_contrastive_is_the_loop(temperature: float) -> None:
    rows = unit(8, 16)
    found = supervised_contrastive(rows, GROUP, temperature)
    assert float(found) == pytest.approx(plain_loop(rows, GROUP, temperature), rel=1e-4)


def test_supervised_contrastive_does_not_look_at_names_order_or_rotation() -> None:
    rows, order = unit(8, 16), torch.tensor([3, 7, 1, 0, 6, 2, 5, 4])
    expected = supervised_contrastive(rows, GROUP, 0.1)
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(3)))[0]
    for other in (
        supervised_contrastive(rows, 100 - 7 * GROUP, 0.1),
        supervised_contrastive(rows[order], GROUP[order], 0.1),
        supervised_contrastive(rows @ rotation, GROUP, 0.1),
    ):
        torch.testing.assert_close(other, expected)


def test_supervised_contrastive_pulls_together_and_pushes_apart() -> None:
    centre = unit(4, 16)
    together = supervised_contrastive(centre[GROUP], GROUP, 0.07)
    mixed = supervised_contrastive(centre[GROUP.roll(1)], GROUP, 0.07)
    # At best, a row of a group of n takes share 1 / (n - 1) of its positives: log 2 for three rows.
    assert float(together) == pytest.approx(3 * math.log(2) / 7, abs=1e-2)
    assert mixed > together + 1


def test_no_positives_is_zero_with_a_gradient() -> None:
    rows = unit(4, 8).requires_grad_()
    loss = supervised_contrastive(rows, torch.arange(4), 0.07)
    assert float(loss.detach()) == 0
    loss.backward()
    assert rows.grad is not None
    assert rows.grad.abs().max() == 0


def test_gradients_are_finite_where_rows_coincide() -> None:
    rows = unit(1, 8).expand(6, 8).clone().requires_grad_()
    supervised_contrastive(rows, torch.tensor([0, 0, 1, 1, 2, 3]), 0.07).backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(64, [64]), (128, [64, 128]), (256, [64, 128, 256]), (512, [64, 128, 256, 512])],
)
def test_prefixes(bits: int, expected: list[int]) -> None:
    assert prefixes(bits) == expected


def test_group_contrast_is_over_keys_and_groups() -> None:
    found = Contrast(vector="key", over="group", temperature=0.2)(output(), batch())
    assert float(found) == pytest.approx(plain_loop(unit(8, 16), GROUP, 0.2), rel=1e-4)


def test_instance_contrast_is_over_pairs_of_group_and_picture() -> None:
    pairs = list(zip(GROUP.tolist(), ENTITY.tolist(), strict=True))
    instance = torch.tensor([pairs.index(pair) for pair in pairs])
    assert instance.tolist() == [0, 1, 0, 3, 4, 5, 6, 6]
    found = Contrast(vector="key", over="instance", temperature=0.2)(output(), batch())
    assert float(found) == pytest.approx(plain_loop(unit(8, 16), instance, 0.2), rel=1e-4)
    # (1, 0) and (0, 1) are two instances, and numbers as large as data sets are no matter
    group, entity = 10**6 * GROUP, 10**6 * ENTITY
    other = Contrast(vector="key", over="instance", temperature=0.2)(output(), batch(group, entity))
    torch.testing.assert_close(other, found)


def test_a_picture_that_does_not_come_again_is_no_instance() -> None:
    one_encoding = batch(image_index=torch.zeros(8, dtype=torch.int64))
    assert float(Contrast(vector="key", over="instance")(output(), one_encoding)) == 0
    # rows 0 and 2 are one question about one thing; 6 and 7 too, but from one encoding
    encoded = torch.tensor([0, 1, 2, 3, 4, 5, 6, 6])
    instance = torch.tensor([0, 1, 0, 3, 4, 5, 6, 7])
    found = Contrast(vector="key", over="instance", temperature=0.2)(
        output(), batch(image_index=encoded)
    )
    assert float(found) == pytest.approx(plain_loop(unit(8, 16), instance, 0.2), rel=1e-4)
    # Nor does it where another picture of the same thing comes: rows 0 and 5 are one encoding.
    shown = {
        "entity": torch.tensor([0, 0, 0, 1, 1, 0, -1, -1]),
        "original": torch.tensor([0, 0, 3, 1, 1, 0, -1, -1]),
    }
    again = instances(batch(**shown))
    assert again[0] == again[5] != again[2]
    once = instances(batch(**shown, image_index=torch.tensor([0, 1, 2, 3, 4, 0, 6, 7])))
    assert once[0] != once[5]


def test_code_contrast_is_the_mean_over_prefixes_of_groups_and_instances() -> None:
    logits = unit(8, 128, seed=4)
    codes = torch.where(logits >= 0, 1.0, -1.0)
    instance = torch.tensor([0, 1, 0, 3, 4, 5, 6, 6])
    by_group, by_instance = (
        sum(plain_loop(codes[:, :n] / n**0.5, labels, 0.2) for n in (64, 128)) / 2
        for labels in (GROUP, instance)
    )
    for weight in (0.0, 0.5):
        loss = CodeContrast(temperature=0.2, instance_weight=weight)
        found = loss(output(logits=logits), batch())
        assert float(found) == pytest.approx(by_group + weight * by_instance, rel=1e-4)


def test_intent_contrast_is_over_texts_and_what_they_ask() -> None:
    text, asked = unit(8, 16), INTENT >= 0
    expected = plain_loop(text[asked], INTENT[asked], 0.2)
    found = Contrast(vector="text", over="intent", temperature=0.2)(output(key=text), batch())
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_code_contrast_does_not_look_at_magnitudes() -> None:
    logits = unit(8, 64)
    scale = torch.rand(8, 64, generator=torch.Generator().manual_seed(5)) + 0.1
    loss = CodeContrast(instance_weight=1)
    torch.testing.assert_close(
        loss(output(logits=logits * scale), batch()), loss(output(logits=logits), batch())
    )


def test_code_affinity_is_zero_when_codes_are_as_similar_as_keys() -> None:
    logits = unit(8, 64)
    key = torch.where(logits >= 0, 1.0, -1.0) / 8
    assert float(CodeAffinity()(output(key=key, logits=logits), batch())) == pytest.approx(
        0, abs=1e-5
    )
    other = float(CodeAffinity()(output(key=key.roll(1, 0), logits=logits), batch()))
    assert other > 0.01


def test_code_affinity_is_a_kl_of_key_similarities_from_code_similarities() -> None:
    key, logits, temperature = unit(5, 16), unit(5, 64, seed=1), 0.3
    code = torch.where(logits >= 0, 1.0, -1.0) / 8
    total = 0.0
    for i in range(5):
        others = [j for j in range(5) if j != i]
        wanted, found = (
            torch.softmax(torch.stack([rows[i] @ rows[j] for j in others]) / temperature, 0)
            for rows in (key, code)
        )
        total += float((wanted * (wanted / found).log()).sum())
    group = torch.zeros(5, dtype=torch.int64)
    loss = CodeAffinity(temperature=temperature)(output(key=key, logits=logits), batch(group))
    assert float(loss) == pytest.approx(total / 5, rel=1e-3)


def test_code_affinity_teaches_the_code_and_not_the_key() -> None:
    key, logits = unit(8, 16).requires_grad_(), unit(8, 64, seed=1).requires_grad_()
    CodeAffinity()(output(key=key, logits=logits), batch()).backward()
    assert key.grad is None
    assert logits.grad is not None
    assert logits.grad.abs().max() > 0


def hadamard(size: int) -> Tensor:
    rows = torch.ones(1, 1)
    while len(rows) < size:
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)])
    return rows


def test_decorrelation_is_zero_for_orthogonal_and_one_for_equal_bits() -> None:
    loss = Decorrelation()
    orthogonal = output(key=unit(64, 8), logits=20 * hadamard(64))
    assert float(loss(orthogonal, batch())) == pytest.approx(0, abs=1e-9)
    equal = 20 * hadamard(64)[:, 1:2].expand(64, 64)
    assert float(loss(output(key=unit(64, 8), logits=equal), batch())) == pytest.approx(1)
    assert float(loss(output(key=unit(64, 8), logits=-equal), batch())) == pytest.approx(1)


def test_decorrelation_does_not_mind_one_bit_turned_over() -> None:
    logits = unit(8, 64)
    turned = logits * torch.where(torch.arange(64) == 5, -1.0, 1.0)
    loss = Decorrelation()
    torch.testing.assert_close(
        loss(output(logits=turned), batch()), loss(output(logits=logits), batch())
    )


def test_consistency_is_over_one_question_about_the_same_picture() -> None:
    key = unit(8, 16)
    # The pair of equal group and picture is (0, 2); texts alone (6, 7) show nothing.
    expected = 1 - key[0] @ key[2]
    torch.testing.assert_close(Consistency()(output(key=key), batch()), expected)
    assert Consistency()(output(key=key), batch(original=TWO_PICTURES)) == 0


def test_consistency_of_equal_keys_is_zero_and_of_no_pairs_zero_with_a_gradient() -> None:
    key = unit(8, 16)
    key[2], key[7] = key[0], key[6]
    assert float(Consistency()(output(key=key), batch())) == pytest.approx(0, abs=1e-6)
    lonely = unit(8, 16).requires_grad_()
    loss = Consistency()(output(key=lonely), batch(group=torch.arange(8)))
    assert float(loss.detach()) == 0
    loss.backward()
    assert lonely.grad is not None
    assert lonely.grad.abs().max() == 0


def test_original_contrast_is_over_pictures_alone() -> None:
    image = unit(8, 16, seed=2)
    present = ENTITY >= 0
    expected = plain_loop(image[present], ENTITY[present], 0.2)
    found = Contrast(vector="image", over="original", temperature=0.2)(output(image=image), batch())
    assert float(found) == pytest.approx(expected, rel=1e-4)
    image[~present] = 0
    torch.testing.assert_close(
        Contrast(vector="image", over="original", temperature=0.2)(output(image=image), batch()),
        found,
    )


def test_original_contrast_of_texts_alone_is_zero_with_a_gradient() -> None:
    image = torch.zeros(8, 16, requires_grad=True)
    nobody = torch.full((8,), -1)
    loss = Contrast(vector="image", over="original")(output(image=image), batch(entity=nobody))
    assert float(loss.detach()) == 0
    loss.backward()


def test_caption_contrast_by_hand() -> None:
    """Both captions of entity 0 are right for both its pictures, and the other way round."""
    image, text = unit(8, 16, seed=2)[DESCRIBED], unit(8, 16)[DESCRIBED]
    logits = image @ text.T / 0.2
    total = 0.0
    for side in (logits.log_softmax(1), logits.T.log_softmax(1)):
        total -= float((side[0, 0] + side[0, 1]) / 2 + (side[1, 0] + side[1, 1]) / 2)
        total -= float(side[2, 2] + side[3, 3])
    found = CaptionContrast(temperature=0.2)(output(), batch())
    assert float(found) == pytest.approx(total / 8, rel=1e-4)


def test_caption_contrast_does_not_look_at_questions() -> None:
    made, other = output(), output(key=unit(8, 16, seed=7), image=unit(8, 16, seed=8))
    image, text = (
        torch.where(DESCRIBED[:, None], one, two)
        for one, two in ((made.image, other.image), (made.text, other.text))
    )
    found = CaptionContrast()(made._replace(image=image, text=text), batch())
    torch.testing.assert_close(found, CaptionContrast()(made, batch()))


def test_caption_contrast_pulls_captions_to_their_pictures() -> None:
    made = output(image=unit(8, 16))  # of which the texts are the same
    near = float(CaptionContrast()(made, batch(entity=torch.arange(8))))
    far = float(CaptionContrast()(made._replace(image=made.image.roll(1, 0)), batch()))
    assert near < 0.1
    assert far > 1


def test_caption_contrast_without_captions_is_zero_with_a_gradient() -> None:
    image = unit(8, 16).requires_grad_()
    nobody = torch.zeros(8, dtype=torch.bool)
    loss = CaptionContrast()(output(image=image), batch(described=nobody))
    assert loss.item() == 0
    loss.backward()
    assert image.grad is not None
    assert image.grad.abs().max() == 0


@pytest.mark.parametrize(
    "loss",
    [
        CaptionContrast(),
        Contrast(vector="key", over="group"),
        Contrast(vector="key", over="instance"),
        CodeContrast(instance_weight=1),
        CodeAffinity(),
        Decorrelation(),
        Consistency(),
        Contrast(vector="image", over="original"),
        Contrast(vector="text", over="intent"),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_every_loss_is_a_finite_scalar_that_permuting_the_batch_leaves(
    loss: torch.nn.Module,
) -> None:
    order = torch.tensor([3, 7, 1, 0, 6, 2, 5, 4])
    made, labels = output(), batch()
    value = loss(made, labels)
    assert value.shape == ()
    assert value.isfinite()
    assert value >= 0
    permuted = KeyOutput(*(part[order] for part in made))
    moved = batch(GROUP[order], ENTITY[order], intent=INTENT[order], described=DESCRIBED[order])
    torch.testing.assert_close(loss(permuted, moved), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"vector": "keys"}, {"over": "groups"}])
def test_contrast_of_something_unknown(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        Contrast(**{"vector": "key", "over": "group"} | wrong)
