from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from keynet.evaluation.joint_hash import labelled
from keynet.training.hash_losses import HashCosine, ResponseContrast
from keynet.types import KeyOutput

GROUP = torch.tensor([0, 1, 0, 2, 1, 0])
CONF = Path(__file__).parents[3] / "conf/loss/joint_hash.yaml"


def output(logits: Tensor) -> KeyOutput:
    unit = F.normalize(logits, dim=1)
    return KeyOutput(unit, unit, unit, logits, torch.zeros(len(logits)))


def drawn(seed: int, bits: int = 64) -> Tensor:
    return torch.randn(len(GROUP), bits, generator=torch.Generator().manual_seed(seed))


def test_hash_cosine_by_hand() -> None:
    # cos((3, -1), (1, -1)) = 4 / sqrt(20); the second row is its own code.
    logits = torch.tensor([[3.0, -1.0], [0.5, -0.5]])
    found = HashCosine()(output(logits), labelled(GROUP[:2]))
    assert float(found) == pytest.approx((1 - 4 / 20**0.5) / 2, rel=1e-5)


def test_hash_cosine_counts_zero_as_one_and_has_a_finite_gradient() -> None:
    logits = torch.zeros(2, 8, requires_grad=True)
    HashCosine()(output(logits), labelled(GROUP[:2])).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_hash_cosine_does_not_turn_codes_but_evens_their_logits() -> None:
    logits = drawn(0).requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=20.0)
    before = (logits >= 0).clone()
    for _ in range(300):
        optimizer.zero_grad()
        loss = HashCosine()(output(logits), labelled(GROUP))
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.02
    assert torch.equal(logits >= 0, before)


def test_response_contrast_is_least_where_codes_of_a_group_meet() -> None:
    signs = torch.sign(drawn(1))
    together = ResponseContrast()(output(signs[GROUP]), labelled(GROUP))
    mixed = ResponseContrast()(output(signs[GROUP.roll(1)]), labelled(GROUP))
    assert together < mixed - 1


def test_response_contrast_looks_at_signs_and_flows_to_logits() -> None:
    logits = drawn(2).requires_grad_()
    loss = ResponseContrast(temperature=0.5)(output(logits), labelled(GROUP))
    scaled = ResponseContrast(temperature=0.5)(output(3 * logits), labelled(GROUP))
    torch.testing.assert_close(loss, scaled)
    loss.backward()
    assert logits.grad is not None and logits.grad.abs().max() > 0


def test_a_temperature_of_zero() -> None:
    with pytest.raises(ValueError, match="temperature=0"):
        ResponseContrast(temperature=0)


def test_the_three_losses_have_the_weights_of_the_specification() -> None:
    losses = instantiate(OmegaConf.load(CONF))
    assert [entry["weight"] for entry in losses.values()] == [0.4, 0.3, 0.3]
    for entry in losses.values():
        loss = entry["loss"](output(drawn(3)), labelled(GROUP))
        assert loss.shape == () and loss.isfinite()


def test_response_contrast_leaves_out_pairs_of_two_scopes() -> None:
    # One question: nothing is left of what two scopes say, and with it no loss.
    apart = labelled(GROUP)._replace(scope=torch.arange(len(GROUP)))
    assert float(ResponseContrast()(output(drawn(2)), apart)) == 0
    assert float(ResponseContrast()(output(drawn(2)), labelled(GROUP))) > 0
