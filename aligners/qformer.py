"""Q-Former between question and picture: what the question asks of the picture's tokens."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Blip2QFormerConfig, Blip2QFormerModel

from aligners.fusion import ALPHA, WeightedSum, present


class Unread(nn.Module):
    """The text row's feed-forward in the last layer, whose output nobody reads: no weights."""

    def forward(self, hidden: Tensor, row: Tensor) -> Tensor:
        """Return ``row``."""
        return row


class QFormerFusion(WeightedSum):
    """The weighted sum of text and of the image as corrected by a Q-Former over its tokens.

    Learned queries read the image's tokens by cross-attention and the text by self-attention, so
    that one picture gives different vectors to different questions.

    Source: SPEC K4; Li et al., BLIP-2, ICML 2023, section 3.1. There the text enters as its tokens;
    here as its aligned vector, one token, and the queries' mean corrects the aligned image.

    Args:
        key_dim: Width D of the aligned vectors and of the key.
        token_dim: Width C of the image's tokens.
        width: Width of the Q-Former.
        depth: Its layers, each with cross-attention.
        heads: Attention heads; a divisor of ``width``.
        num_queries: Learned queries.
        dropout: Share left out in training, of hidden states and of attention.
        alpha: As in ``WeightedSum``.

    Raises:
        ValueError: Values of another type or out of range.
    """

    reads_tokens = True

    def __init__(
        self,
        *,
        key_dim: int,
        token_dim: int,
        width: int = 256,
        depth: int = 2,
        heads: int = 4,
        num_queries: int = 8,
        dropout: float = 0.1,
        alpha: float | Literal["learned", "alignment"] = ALPHA,
    ) -> None:
        super().__init__(key_dim=key_dim, alpha=alpha)
        counts = {"width": width, "depth": depth, "heads": heads, "num_queries": num_queries}
        for name, value in counts.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"fusion.{name}={value!r}: expected a whole number above 0")
        if width % heads:
            raise ValueError(
                f"fusion.heads={heads}: expected a divisor of fusion.width={width}; change either"
            )
        if type(dropout) not in (int, float) or not 0 <= dropout < 1:
            raise ValueError(f"fusion.dropout={dropout!r}: expected a number from 0 to below 1")
        self.num_queries = num_queries
        self.queries = nn.Parameter(0.02 * torch.randn(num_queries, width))
        self.token_projection = nn.Sequential(nn.LayerNorm(token_dim), nn.Linear(token_dim, width))
        self.text_projection = nn.Linear(key_dim, width)
        self.qformer = Blip2QFormerModel(
            Blip2QFormerConfig(
                hidden_size=width,
                num_hidden_layers=depth,
                num_attention_heads=heads,
                intermediate_size=4 * width,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
                cross_attention_frequency=1,
                encoder_hidden_size=width,
                use_qformer_text_input=True,
                attn_implementation="sdpa",  # the one that takes a bool mask
            )
        )
        last = self.qformer.encoder.layer[-1]
        last.intermediate, last.output = nn.Identity(), Unread()
        # Small, so that training starts near the weighted sum of what the aligner gives; not zero,
        # which would keep every gradient from the Q-Former in the first step.
        self.head = nn.Linear(width, key_dim)
        with torch.no_grad():
            self.head.weight.mul_(0.1)
            self.head.bias.zero_()

    def forward(self, image: Tensor, text: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]
        """Return the key [B, D], unit norm; with text alone, the text.

        Args:
            image: [B, D], unit norm, or zero where absent.
            text: [B, D], unit norm, or zero where absent.
            tokens: The image's tokens [B, T, C], of any floating type; not looked at where
                ``image`` is zero.
        """
        return F.normalize(self.weighted(self.corrected(image, text, tokens), text), dim=-1)

    def corrected(self, image: Tensor, text: Tensor, tokens: Tensor) -> Tensor:
        """Return the image as the text asks for it [B, D], unit norm, or zero where absent."""
        has_image, has_text = present(image), present(text)
        tokens = torch.where(has_image.unsqueeze(-1), tokens.float(), 0.0)
        root = self.key_dim**0.5  # entries of order one into the layer and beside the head's
        question = self.text_projection(root * text).unsqueeze(1)  # (B, 1, W)
        queries = self.queries.expand(text.shape[0], -1, -1)
        # In four dimensions, which transformers passes on as it is: two it would first ask whether
        # all is seen, a branch on data.
        seen = F.pad(has_text, (self.num_queries, 0), value=True)[:, None, None]
        states = self.qformer(
            query_embeds=torch.cat([queries, question], dim=1),
            query_length=self.num_queries,  # the text does not cross-attend
            attention_mask=seen,  # (B, 1, 1, Q + 1)
            encoder_hidden_states=self.token_projection(tokens),
        ).last_hidden_state
        correction = self.head(states[:, : self.num_queries].mean(1))
        return torch.where(has_image, F.normalize(root * image + correction, dim=-1), 0.0)
