"""Low-rank adapters (LoRA) beside the frozen layers of a published network, through peft."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from keynet.models.checkpoint import require


def add_lora(module: nn.Module, rank: int, targets: Sequence[str]) -> nn.Module:
    """Return the module, frozen but for adapters of the layers ``targets``, changed in place.

    W x becomes W x + 2 B A x; B starts as zero.

    Source: Hu et al., LoRA, ICLR 2022.

    Args:
        module: A network.
        rank: Of A and B.
        targets: Last names of layers, all that have them: ``nn.Linear``, or a whole
            ``nn.MultiheadAttention``, which becomes an ``AdaptedAttention``.

    Raises:
        ValueError: When no layer has such a name, or one is of a kind that takes no adapter.
    """
    peft = require("peft")
    if rank < 1:
        raise ValueError(f"LoRA rank {rank}: expected 1 or more")
    chosen = []
    for name, layer in list(module.named_modules()):
        parent, _, last = name.rpartition(".")
        if last not in targets:
            continue
        if isinstance(layer, nn.MultiheadAttention):
            setattr(module.get_submodule(parent), last, AdaptedAttention(layer))
            chosen += [f"{name}.in_proj", f"{name}.out_proj"]
        elif isinstance(module.get_submodule(parent), nn.MultiheadAttention):
            raise ValueError(
                f"LoRA on {name} would silently do nothing: nn.MultiheadAttention reads the "
                f"weights of its {last} and never calls it; name {parent.rpartition('.')[2]}"
            )
        elif isinstance(layer, nn.Linear):
            chosen.append(name)
        else:
            raise ValueError(
                f"LoRA on {name}, which is {type(layer).__name__}: expected nn.Linear or "
                "nn.MultiheadAttention; name the layers inside it"
            )
    if not chosen:
        raise ValueError(
            f"LoRA on {', '.join(targets)}: {type(module).__name__} has no layer of such a name"
        )
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=chosen)
    adapted: nn.Module = peft.inject_adapter_in_model(config, module)
    return adapted


def merged(module: nn.Module) -> None:
    """Add every adapter to the weights beside it and take it out, in place: before an export."""
    if not any(hasattr(part, "lora_A") for part in module.modules()):
        return
    adapter = require("peft.tuners.lora").LoraLayer
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, adapter):
                layer.merge()
                setattr(parent, name, layer.get_base_layer())
        if hasattr(parent, "peft_config"):
            del parent.peft_config


class AdaptedAttention(nn.Module):
    """An ``nn.MultiheadAttention`` whose projections are layers that are called.

    peft's own adapter for it (0.21) adds what is trained beside ``out_proj`` twice, with the
    gradient of once, and moves the frozen weights by rounding in every step.

    Args:
        attention: Batch first, of one width, without dropout; its weights are taken over.

    Raises:
        ValueError: When it is another.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        plain = attention._qkv_same_embed_dim and attention.batch_first and not attention.dropout
        if not plain or attention.bias_k is not None or attention.add_zero_attn:
            raise ValueError(
                f"LoRA on {attention}: expected batch_first, one width for query, key and value, "
                "no dropout, no added bias"
            )
        self.heads = attention.num_heads
        width = attention.embed_dim
        self.in_proj = nn.Linear(width, 3 * width, bias=attention.in_proj_bias is not None)
        self.in_proj.weight = attention.in_proj_weight
        if attention.in_proj_bias is not None:
            self.in_proj.bias = attention.in_proj_bias
        self.out_proj = nn.Linear(width, width)
        self.out_proj.load_state_dict(attention.out_proj.state_dict())

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Return the self-attention over ``query`` [B, L, W] and None for its weights.

        Args:
            query, key, value: The same tensor.
            need_weights: Not given.
            attn_mask: [L, L], added before the softmax.
        """
        if key is not query or value is not query or need_weights:
            raise ValueError("expected query, key and value as one tensor, without need_weights")
        batch, length, width = query.shape
        qkv = self.in_proj(query).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, L, W / H)
        mask = None if attn_mask is None else attn_mask.to(q.dtype)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(attended.transpose(1, 2).reshape(batch, length, width)), None
