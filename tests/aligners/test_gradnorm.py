from __future__ import annotations

from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aligners.gradnorm import GradNorm


def shared() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, 1.0]))


def pulls(at: nn.Parameter, first: float = 1.0, second: float = 1.0) -> dict[str, Tensor]:
    """Losses 7 and 1 times the factors, with gradients of norm 5 and 1 times the factors."""
    return {
        "a": first * (at * torch.tensor([3.0, 4.0])).sum(),
        "b": second * (at * torch.tensor([0.0, 1.0])).sum(),
    }


def test_two_steps_computed_by_hand() -> None:
    gradnorm, at = GradNorm(names=["a", "b"], learning_rate=0.1), shared()
    assert gradnorm(pulls(at), [at]).tolist() == [1, 1]
    # norms 5 and 1, mean 3, rates alike: both targets 3
    a, b = exp(-0.1 * 5 / 3), exp(0.1 * 1 / 3)
    a, b = 2 * a / (a + b), 2 * b / (a + b)
    torch.testing.assert_close(gradnorm.weights, torch.tensor([a, b]))
    # "a" at a fifth of its first loss and gradient, "b" at 3/5: rates 0.5 and 1.5 of their mean
    used = gradnorm(pulls(at, first=0.2, second=0.6), [at])
    torch.testing.assert_close(used, torch.tensor([a, b]))
    norms = a * 5 * 0.2, b * 0.6
    mean = sum(norms) / 2
    targets = mean * 0.5**0.3, mean * 1.5**0.3
    assert norms[0] > targets[0] and norms[1] < targets[1]
    a, b = a * exp(-0.1 * norms[0] / mean), b * exp(0.1 * norms[1] / mean)
    expected = torch.tensor([2 * a / (a + b), 2 * b / (a + b)])
    torch.testing.assert_close(gradnorm.weights, expected)


def test_the_step_is_down_the_gradient_of_the_l1_loss() -> None:
    gradnorm, at = GradNorm(names=["a", "b"], learning_rate=1e-3), shared()
    gradnorm(pulls(at), [at])
    gradnorm.weights.copy_(torch.tensor([0.7, 1.3]))
    log = gradnorm.weights.log().requires_grad_()
    norms = log.exp() * torch.tensor([5 * 0.5, 2.0])
    rate = torch.tensor([0.5, 2.0]) / 1.25
    mean = norms.mean().detach()
    (norms - mean * rate**0.3).abs().sum().div(mean).backward()
    stepped = (log.detach() - 1e-3 * log.grad).exp()
    gradnorm(pulls(at, first=0.5, second=2.0), [at])
    torch.testing.assert_close(gradnorm.weights, 2 * stepped / stepped.sum())


@pytest.mark.parametrize("scale", [100.0, 0.01])
def test_it_evens_out_gradients_of_scale_1_and_100(scale: float) -> None:
    gradnorm, at = GradNorm(names=["a", "b"]), shared()
    for _ in range(400):
        weights = gradnorm(pulls(at, first=scale / 5), [at])
    assert weights[0] * scale == pytest.approx(weights[1].item(), rel=0.06)


def test_a_common_scale_changes_nothing() -> None:
    small, large, at = GradNorm(names=["a", "b"]), GradNorm(names=["a", "b"]), shared()
    for _ in range(5):
        small(pulls(at), [at])
        large(pulls(at, first=1e3, second=1e3), [at])
    torch.testing.assert_close(small.weights, large.weights)


def test_a_loss_that_lags_gains_weight_by_alpha() -> None:
    at = shared()
    gained = []
    for alpha in (0.0, 0.3, 1.0):
        gradnorm = GradNorm(names=["a", "b"], alpha=alpha, learning_rate=0.01)
        gradnorm(pulls(at, first=0.2), [at])
        for _ in range(200):  # "a" at half of its first loss; equal gradients would be 1 : 0.5
            weights = gradnorm(pulls(at, first=0.1), [at])
        gained.append((weights[1] / (0.5 * weights[0])).item())
    assert gained == pytest.approx([1, 2**0.3, 2], rel=0.06)


def train(steps: int, gradnorm: GradNorm, model: nn.Sequential, seed: int) -> list[Tensor]:
    """Two regressions, one of scale 100, from one hidden layer; the weights of each step."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    history = []
    for _ in range(steps):
        x = torch.randn(16, 8, generator=generator)
        error = model(x) - torch.stack([x[:, 0], 100 * x[:, 1]], dim=1)
        near, far = error.square().mean(0)
        losses = {"near": near, "far": far}
        weights = gradnorm(losses, [model[0].weight])
        optimizer.zero_grad()
        (weights * torch.stack([losses[name] for name in gradnorm.names])).sum().backward()
        optimizer.step()
        history.append(weights)
    return history


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def test_weights_are_positive_and_sum_to_the_count_while_training() -> None:
    history = torch.stack(train(100, GradNorm(names=["near", "far"]), network(), 0))
    assert (history > 0).all()
    torch.testing.assert_close(history.sum(1), torch.full((100,), 2.0))
    assert history[-1, 0] > 10 * history[-1, 1]


def test_it_is_deterministic_and_goes_on_from_a_checkpoint() -> None:
    gradnorm, model = GradNorm(names=["near", "far"]), network()
    train(20, gradnorm, model, 0)
    states: list[dict[str, Any]] = [
        {name: value.clone() for name, value in module.state_dict().items()}
        for module in (gradnorm, model)
    ]
    assert set(states[0]) == {"weights", "first"}
    wanted = train(20, gradnorm, model, 1)
    gradnorm, model = GradNorm(names=["near", "far"]), network()
    gradnorm.load_state_dict(states[0])
    model.load_state_dict(states[1])
    assert torch.equal(torch.stack(train(20, gradnorm, model, 1)), torch.stack(wanted))


def test_the_backward_of_the_weighted_sum_is_untouched() -> None:
    gradnorm, at = GradNorm(names=["a", "b"]), shared()
    gradnorm.weights.copy_(torch.tensor([0.5, 1.5]))
    losses = pulls(at)
    weights = gradnorm(losses, [at])
    assert at.grad is None
    assert not weights.requires_grad
    (weights[0] * losses["a"] + weights[1] * losses["b"]).backward()
    torch.testing.assert_close(at.grad, torch.tensor([1.5, 2.0 + 1.5]))


@pytest.mark.parametrize("case", ["unused", "constant", "zero gradient", "learnt"])
def test_a_loss_left_out_keeps_its_weight(case: str) -> None:
    at, other = shared(), nn.Parameter(torch.ones(()))
    third = {
        "unused": 4 * other,
        "constant": torch.tensor(4.0),
        "zero gradient": at.sum() * 0 + 4,
        "learnt": at.sum() - 2.001,
    }[case]
    gradnorm = GradNorm(names=["a", "c", "b"])
    gradnorm.weights.copy_(torch.tensor([0.9, 1.3, 0.8]))
    gradnorm({**pulls(at), "c": third}, [at])
    assert gradnorm.weights[1] == torch.tensor(1.3)
    assert gradnorm.first.tolist() == [7, 0, 1]
    assert gradnorm.weights[0] < 0.9
    assert gradnorm.weights.sum().item() == pytest.approx(3)
    # It takes part from the first step with a gradient, which its rate counts from.
    gradnorm({**pulls(at), "c": 3 * at.sum()}, [at])
    assert gradnorm.first.tolist() == [7, 6, 1]
    assert gradnorm.weights[1] != torch.tensor(1.3)


def test_one_loss_or_one_with_gradient_keeps_all_weights() -> None:
    at = shared()
    alone = GradNorm(names=["a"])
    assert alone({"a": pulls(at)["a"]}, []).tolist() == [1]
    gradnorm = GradNorm(names=["a", "b"])
    gradnorm({"a": pulls(at)["a"], "b": torch.tensor(2.0)}, [at])
    assert gradnorm.weights.tolist() == [1, 1]


def test_nothing_is_updated_in_evaluation_or_without_a_graph() -> None:
    gradnorm, at = GradNorm(names=["a", "b"]).eval(), shared()
    gradnorm(pulls(at), [at])
    with torch.no_grad():
        gradnorm.train()(pulls(at), [at])
    assert gradnorm.weights.tolist() == [1, 1]
    assert gradnorm.first.tolist() == [0, 0]


def test_norms_are_over_all_shared_parameters_that_are_trained() -> None:
    parts = [nn.Parameter(torch.ones(())) for _ in range(3)]
    parts[2].requires_grad_(False)
    losses = {"a": 3 * parts[0] + 4 * parts[1] + 9 * parts[2], "b": 1 * parts[1]}
    gradnorm, at = GradNorm(names=["a", "b"]), shared()
    gradnorm(losses, parts)
    other = GradNorm(names=["a", "b"])
    other(pulls(at), [at])
    torch.testing.assert_close(gradnorm.weights, other.weights)


def test_losses_under_other_names_are_named() -> None:
    at = shared()
    with pytest.raises(ValueError, match=r"losses \['a', 'b'\]: expected \['a', 'c'\]"):
        GradNorm(names=["a", "c"])(pulls(at), [at])


def test_nothing_trained_among_the_shared_is_an_error() -> None:
    at, frozen = shared(), nn.Parameter(torch.ones(2), requires_grad=False)
    with pytest.raises(ValueError, match="1 shared parameters, none trained"):
        GradNorm(names=["a", "b"])(pulls(at), [frozen])


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_named_and_spoils_nothing(factor: float) -> None:
    gradnorm, at = GradNorm(names=["a", "b"]), shared()
    with pytest.raises(FloatingPointError, match=f"loss b is {factor}"):
        gradnorm(pulls(at, second=factor), [at])
    assert gradnorm.weights.tolist() == [1, 1]
    assert gradnorm.first.tolist() == [0, 0]


def test_a_negative_loss_is_named() -> None:
    at = shared()
    with pytest.raises(ValueError, match="loss b is -1"):
        GradNorm(names=["a", "b"])(pulls(at, second=-1.0), [at])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"names": []}, "names"),
        ({"names": ["a", "a"]}, "names"),
        ({"names": ["a"], "alpha": -0.1}, "alpha"),
        ({"names": ["a"], "learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_options_that_make_no_sense_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}="):
        GradNorm(**options)
