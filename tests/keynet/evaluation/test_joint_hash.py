from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from keynet.evaluation.average_precision import mean_average_precision
from keynet.evaluation.hash_baselines import shuffled_batches, signs
from keynet.evaluation.joint_hash import JointHash, fit_joint_hash, labelled
from keynet.training.hash_losses import HashCosine, ResponseContrast
from keynet.training.losses import Contrast

LOSSES = {
    "contrastive": {"weight": 0.4, "loss": Contrast(vector="key", over="group")},
    "response": {"weight": 0.3, "loss": ResponseContrast()},
    "hash_cosine": {"weight": 0.3, "loss": HashCosine()},
}


def made(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Twenty groups, of four pictures and five texts, under noise."""
    drawn = torch.Generator().manual_seed(0)
    pictures, texts = torch.randn(4, 24, generator=drawn), torch.randn(5, 12, generator=drawn)
    own = torch.Generator().manual_seed(seed)
    group = torch.randint(20, (count,), generator=own)
    noise = [2 * torch.randn(count, dim, generator=own) for dim in (24, 12)]
    return pictures[group % 4] + noise[0], texts[group // 4] + noise[1], group


def fitted(seed: int, epochs: int = 20) -> JointHash:
    image, text, group = made(1000, 1)
    batches = shuffled_batches(1000, epochs, torch.Generator().manual_seed(seed))
    return fit_joint_hash(
        image, text, group, bits=32, seed=seed, batches=batches, losses=LOSSES, learning_rate=1e-2
    )


def judged(head: JointHash) -> float:
    image, text, group = made(400, 2)
    codes = signs(head.logits(image, text))
    labels = group.numpy()
    return mean_average_precision(codes[:200], codes[200:], labels[:200], labels[200:])[0]


def test_training_brings_equivalents_together() -> None:
    image, text, _ = made(1000, 1)
    assert judged(fitted(0)) > judged(JointHash(image, text, bits=32, seed=0).eval()) + 0.05


def test_each_half_is_of_one_modality() -> None:
    head = fitted(0, epochs=1)
    image, text, _ = made(10, 3)
    other = head.logits(image, text.flip(0))
    assert np.array_equal(other[:, :16], head.logits(image, text)[:, :16])
    assert head.blocks == {"image": (0, 16), "text": (16, 32)}


def test_equal_seeds_are_equal() -> None:
    image, text, _ = made(10, 3)
    first, again, other = (fitted(seed, epochs=1).logits(image, text) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_what_losses_read() -> None:
    image, text, group = made(6, 3)
    output = fitted(0, epochs=1)(image, text)
    for unit in (output.key, output.image, output.text):
        torch.testing.assert_close(unit.norm(dim=1), torch.ones(6))
    batch = labelled(group)
    assert torch.equal(batch.group, group)
    assert not batch.described.any()
    assert (batch.entity == -1).all()
