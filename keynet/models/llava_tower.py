"""The language model of a LLaVA as a text tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from keynet.models.checkpoint import READ_ERRORS, load_network, one_line, require
from keynet.models.pretrained import PretrainedTextTower

LANGUAGE_MODEL = "model.language_model."
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LlavaTextTower(PretrainedTextTower):
    """LLaVA's language model, the mean of its last hidden states over a text's tokens.

    Its tokenizer is ``llava_tokenizer``.

    Source: Liu et al., Visual Instruction Tuning, NeurIPS 2023.

    Args:
        path: A folder that save_pretrained wrote, or a hub name. All of it is read, and the vision
            tower and the projector are dropped then. In float32: 27 GB of 7 billion weights.
        max_tokens: Longest text.
        frozen, lora_rank: See ``PretrainedTower``.

    Raises:
        ValueError: When the checkpoint lacks something, or does not fit the other arguments.
    """

    def __init__(
        self, *, path: str, max_tokens: int, frozen: bool = True, lora_rank: int = 0
    ) -> None:
        whole = require("transformers").LlavaForConditionalGeneration
        network: Any = load_network(path, whole, part=LANGUAGE_MODEL)
        network = network.model.language_model
        super().__init__(
            network,
            max_tokens=max_tokens,
            positions=network.config.max_position_embeddings,
            num_features=network.config.hidden_size,
            frozen=frozen,
            lora_rank=lora_rank,
            lora_targets=LORA_TARGETS,
        )

    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        # No mask inside: the attention is causal, so no token sees the padding after it.
        states = self.network(input_ids=tokens, use_cache=False).last_hidden_state
        weight = mask.unsqueeze(-1).to(states.dtype)
        pooled: Tensor = (states * weight).sum(1) / weight.sum(1).clamp(min=1)
        return pooled


def llava_tokenizer(path: str) -> Tokenizer:
    """Return the tokenizer of a LLaVA, with the token that begins a text.

    Args:
        path: As of ``LlavaTextTower``.

    Raises:
        ValueError: When it has none that can be read.
    """
    auto = require("transformers").AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(
            path, local_files_only=Path(path).is_dir(), trust_remote_code=False
        )
    except READ_ERRORS as error:
        raise ValueError(
            f"the tokenizer of {path} cannot be read ({one_line(error)}); check its files"
        ) from error
    # Without its files, transformers 5 makes a tokenizer of special tokens alone and says nothing.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(f"{path} has no tokenizer.json; put it beside the weights")
    result = Tokenizer.from_str(backend.to_str())
    result.no_padding()
    result.no_truncation()
    return result
