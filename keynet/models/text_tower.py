"""A small transformer over byte-level BPE tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS_AT_ONCE = 64  # texts of like length in training


class Block(nn.Module):
    """Pre-norm transformer block over [B, L, W] with a key mask [B, L]."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [B, L, W]; positions with a false ``mask`` [B, L] are never attended to."""
        x = x + self.attend(self.attention_norm(x), mask)
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the self-attention over [B, L, W]."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, L, W / H)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        out: Tensor = self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return out


class TextTower(nn.Module):
    """Transformer encoder, mean-pooled.

    Args:
        vocab_size: Tokens of the tokenizer that belongs to the model.
        width: Width W.
        depth: Blocks.
        heads: Attention heads.
        max_tokens: Longest text.
    """

    block: type[nn.Module] = Block

    def __init__(
        self, *, vocab_size: int, width: int, depth: int, heads: int, max_tokens: int
    ) -> None:
        super().__init__()
        self.num_features = width
        self.vocab_size = vocab_size
        self.max_tokens = max_tokens
        self.embedding = nn.Embedding(vocab_size, width)
        self.position = nn.Parameter(torch.empty(max_tokens, width))
        # Always there, so that a text that is absent still has something to attend to.
        self.start = nn.Parameter(torch.empty(1, 1, width))
        for parameter in (self.embedding.weight, self.position, self.start):
            nn.init.normal_(parameter, std=0.02)
        self.blocks = nn.ModuleList(self.block(width=width, heads=heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return text features [B, W].

        Args:
            tokens: int64 [B, L], L <= max_tokens.
            mask: bool [B, L], true at the tokens, which stand first.
        """
        if not self.training:
            return self._encode(tokens, mask)
        # Short texts apart from long ones: padding is most of a batch of captions. And twice as
        # fast in bf16; serving runs in the precision of its inputs.
        lengths = mask.sum(1)
        order = lengths.argsort(stable=True)
        parts = []
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            for rows in torch.split(order, ROWS_AT_ONCE):
                longest = max(1, int(lengths[rows].max()))
                longest += -longest % 8  # few distinct shapes: a kernel is compiled for each
                parts.append(self._encode(tokens[rows, :longest], mask[rows, :longest]))
        return torch.cat(parts)[order.argsort()]

    def _encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        x = self._before(torch.cat([self.start.expand(tokens.shape[0], 1, -1), x], dim=1))
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
        for block in self.blocks:
            x = block(x, mask)
        weight = mask.unsqueeze(-1).to(x.dtype)
        pooled: Tensor = (self._after(x) * weight).sum(1) / weight.sum(1)
        return pooled

    def _before(self, x: Tensor) -> Tensor:
        return x

    def _after(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed
