from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from open_clip.transformer import Transformer
from torch import Tensor, nn

from keynet.models.lora import AdaptedAttention, add_lora, merged

TARGETS = ("attn", "c_fc", "c_proj")
WIDTH, LAYERS, RANK = 16, 2, 3
CAUSAL = torch.full((5, 5), float("-inf")).triu(1)


def network() -> Transformer:
    """open_clip's blocks, in evaluation mode."""
    torch.manual_seed(0)
    return Transformer(width=WIDTH, layers=LAYERS, heads=2).eval()


def rows(count: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, 5, WIDTH, generator=torch.Generator().manual_seed(seed))


def trained(module: nn.Module) -> nn.Module:
    """Adapters away from zero, as after training."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return module


def adapted() -> Any:
    return trained(add_lora(network(), RANK, TARGETS))


def test_adapters_start_as_the_network_itself() -> None:
    expected = network()(rows(), attn_mask=CAUSAL)
    found = add_lora(network(), RANK, TARGETS)(rows(), attn_mask=CAUSAL)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_every_adapter_gets_a_gradient_and_nothing_else_does() -> None:
    module = adapted().train()
    module(rows(), attn_mask=CAUSAL).square().sum().backward()
    wanted = {name for name, p in module.named_parameters() if p.requires_grad}
    assert wanted == {name for name, _ in module.named_parameters() if "lora_" in name}
    # A and B beside in_proj, out_proj, c_fc and c_proj of each block
    assert len(wanted) == LAYERS * 4 * 2
    for name, parameter in module.named_parameters():
        if name in wanted:
            assert parameter.grad is not None and parameter.grad.abs().max() > 1e-4, name
        else:
            assert parameter.grad is None, name


def test_training_moves_adapters_alone_and_the_frozen_weights_not_by_a_bit() -> None:
    module = adapted().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        module(rows(seed=step)).square().mean().backward()
        optimizer.step()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]) == ("lora_" not in name), name


@pytest.mark.parametrize("mask", [None, CAUSAL])
def test_attention_is_that_of_the_weights_with_twice_the_product_added(
    mask: Tensor | None,
) -> None:
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
    nn.init.normal_(plain.in_proj_bias)
    nn.init.normal_(plain.out_proj.bias)
    holder: Any = trained(add_lora(nn.ModuleDict({"attn": copy.deepcopy(plain)}), RANK, ["attn"]))
    with torch.no_grad():
        for layer, weight in (
            (holder["attn"].in_proj, plain.in_proj_weight),
            (holder["attn"].out_proj, plain.out_proj.weight),
        ):
            weight += 2 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    x = rows()
    expected = plain(x, x, x, need_weights=False, attn_mask=mask)[0]
    found, weights = holder["attn"](x, x, x, need_weights=False, attn_mask=mask)
    assert weights is None
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# TorchScript is what is exported; torch deprecates it.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_merging_keeps_the_function_and_leaves_plain_layers_that_trace() -> None:
    module = nn.Sequential(adapted(), nn.Linear(WIDTH, 2)).eval()
    expected = module(rows())
    merged(module)
    assert torch.allclose(module(rows()), expected, atol=1e-5)
    assert not [name for name in module.state_dict() if "lora" in name or "base_layer" in name]
    assert not [m for m in module.modules() if type(m).__module__.startswith("peft")]
    assert not hasattr(module[0], "peft_config")
    module.requires_grad_(False)
    traced = torch.jit.trace(module, rows(2))
    assert torch.equal(traced(rows(7, seed=2)), module(rows(7, seed=2)))


def test_merging_what_has_no_adapters_changes_nothing() -> None:
    module = network()
    before = copy.deepcopy(module.state_dict())
    merged(module)
    assert list(module.state_dict()) == list(before)
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in before)


def test_a_checkpoint_of_adapters_is_read_again() -> None:
    again = add_lora(network(), RANK, TARGETS)
    again.load_state_dict(adapted().state_dict())
    assert torch.equal(again(rows()), adapted()(rows()))


@pytest.mark.parametrize(
    ("rank", "targets", "message"),
    [
        (0, TARGETS, "rank 0: expected 1 or more"),
        (2, ["q_proj"], "LoRA on q_proj: Transformer has no layer of such a name"),
        (2, ["out_proj"], r"attn.out_proj would silently do nothing.*name attn"),
        (2, ["ln_1"], "ln_1, which is LayerNorm: expected nn.Linear"),
    ],
)
def test_targets_that_would_train_nothing_are_refused(
    rank: int, targets: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        add_lora(network(), rank, targets)


@pytest.mark.parametrize(
    "options", [{"batch_first": False}, {"dropout": 0.1}, {"add_bias_kv": True}, {"kdim": 8}]
)
def test_attention_of_another_kind_is_refused(options: dict[str, Any]) -> None:
    attention = nn.MultiheadAttention(WIDTH, 2, **{"batch_first": True, **options})
    with pytest.raises(ValueError, match="expected batch_first, one width"):
        AdaptedAttention(attention)


def test_cross_attention_is_refused() -> None:
    attention = AdaptedAttention(nn.MultiheadAttention(WIDTH, 2, batch_first=True))
    with pytest.raises(ValueError, match="query, key and value as one tensor"):
        attention(rows(), rows(seed=1), rows(seed=1))
