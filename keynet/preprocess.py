"""From bytes and text to tensors: the only code that turns requests into what a model takes.

Choices, each written into the manifest: pictures as ``keynet.pictures`` decodes them; text is NFC
and never cut silently.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from keynet.pictures import MAX_PIXELS, PILLOW_PIXELS, Colour, decode
from keynet.types import Request, RequestBatch, RequestError

LongText = Literal["error", "fold"]

MAX_TEXT_BYTES = 1_000_000  # about half a second to tokenise
TOKEN_MULTIPLE = 8  # few distinct lengths, so few shapes for kernels
FOLD_TOKENS = 8  # 8 tokens of a vocabulary of 4,096 carry 96 bits of the digest


class Preprocessor:
    """Turns requests into a ``RequestBatch``.

    ``folded`` and ``animated`` count, in this process, the texts that were folded and the
    animations of which the first frame was taken.

    Args:
        image_size: S.
        tokenizer: Copied; its truncation and padding are switched off, and its special tokens
            cannot be written in a text.
        max_tokens: Longest text, a multiple of 8.
        background: Colour behind transparency and in the padding.
        long_text: ``error`` refuses a text of more tokens; ``fold`` keeps its head and tail and
            puts 8 tokens in between that are drawn from the SHA-256 of the whole text.
        max_pixels, max_text_bytes: Larger is refused before it is decoded or tokenised.

    Raises:
        ValueError: When a setting is out of range.
    """

    def __init__(
        self,
        image_size: int,
        tokenizer: Tokenizer,
        max_tokens: int,
        background: Colour = (255, 255, 255),
        long_text: LongText = "error",
        *,
        max_pixels: int = MAX_PIXELS,
        max_text_bytes: int = MAX_TEXT_BYTES,
    ) -> None:
        limits = {"image_size": image_size, "max_tokens": max_tokens}
        limits |= {"max_pixels": max_pixels, "max_text_bytes": max_text_bytes}
        for name, value in limits.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; give a positive number")
        if max_pixels > PILLOW_PIXELS:
            raise ValueError(f"max_pixels is {max_pixels}; Pillow takes {PILLOW_PIXELS} at most")
        if max_tokens % TOKEN_MULTIPLE:
            raise ValueError(f"max_tokens is {max_tokens}; give a multiple of {TOKEN_MULTIPLE}")
        if len(background) != 3 or not all(0 <= c <= 255 for c in background):
            raise ValueError(f"background is {background}; give three numbers from 0 to 255")
        if long_text not in ("error", "fold"):
            raise ValueError(f"long_text is {long_text!r}; give 'error' or 'fold'")
        if long_text == "fold" and max_tokens < 2 * FOLD_TOKENS:
            raise ValueError(f"max_tokens is {max_tokens}; folding needs {2 * FOLD_TOKENS}")
        self.image_size = image_size
        self.max_tokens = max_tokens
        self.background: Colour = (background[0], background[1], background[2])
        self.long_text: LongText = long_text
        self.max_pixels = max_pixels
        self.max_text_bytes = max_text_bytes
        self.folded = 0
        self.animated = 0
        self._set_tokenizer(tokenizer.to_str())

    def __call__(
        self,
        requests: Sequence[Request],
        group: Sequence[int] | None = None,
        sample_id: Sequence[int] | None = None,
        *,
        first: int = 0,
    ) -> RequestBatch:
        """Return the requests as one batch, L the longest text rounded up to a multiple of 8.

        Args:
            requests: At least one.
            group, sample_id: Of each; -1 where not given.
            first: Position of the first request in the caller's list, for messages.

        Raises:
            RequestError: When a request cannot become tensors; the message names its position.
        """
        count = len(requests)
        if count == 0:
            raise RequestError("no requests; give at least one")
        images = torch.zeros(count, 3, self.image_size, self.image_size, dtype=torch.uint8)
        image_mask = torch.zeros(count, dtype=torch.bool)
        texts: list[list[int]] = []
        for i, request in enumerate(requests):
            try:
                if request.image is not None:
                    images[i] = self.image(request.image)
                    image_mask[i] = True
                texts.append([] if request.text is None else self.tokenise(request.text))
            except RequestError as error:
                raise RequestError(f"request {first + i}: {error}") from error
        length = -(-max(1, *map(len, texts)) // TOKEN_MULTIPLE) * TOKEN_MULTIPLE
        tokens = torch.zeros(count, length, dtype=torch.int64)
        token_mask = torch.zeros(count, length, dtype=torch.bool)
        for i, ids in enumerate(texts):
            tokens[i, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
            token_mask[i, : len(ids)] = True
        labels = _labels("group", group, count), _labels("sample_id", sample_id, count)
        return RequestBatch(images, image_mask, tokens, token_mask, *labels)

    def image(self, source: bytes | str | Path | np.ndarray) -> Tensor:
        """Return the picture as uint8 [3, S, S]; see ``decode_image``."""
        pixels, animated = decode(source, self.image_size, self.background, self.max_pixels)
        self.animated += animated
        return pixels

    def tokenise(self, text: str) -> list[int]:
        """Return the token ids of a text, at most ``max_tokens``.

        Raises:
            RequestError: When the text is empty, not Unicode, too large or too long.
        """
        text = self._normalise(text)
        ids = list(self._tokenizer.encode(text).ids)
        if not ids:
            raise RequestError("text has no tokens in this vocabulary; write it differently")
        if len(ids) <= self.max_tokens:
            return ids
        if self.long_text == "error":
            raise RequestError(
                f"text has {len(ids)} tokens and the model takes {self.max_tokens}; shorten it, "
                "or choose long_text='fold' (head and tail stay, a digest marks the middle)"
            )
        self.folded += 1
        return self._fold(ids, text)

    def long_text_digest(self, text: str | None) -> str | None:
        """Return the SHA-256 in hex of a text that is folded, and None for any other.

        It belongs into the scope: the model has not seen the middle, so only that text matches.
        """
        if text is None or self.long_text == "error":
            return None
        text = self._normalise(text)
        if len(self._tokenizer.encode(text).ids) <= self.max_tokens:
            return None
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def tokenizer_json(self) -> str:
        """The tokenizer as JSON text, as exports carry it."""
        return str(self._tokenizer.to_str())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tokenizer": self.tokenizer_json}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_tokenizer(state["_tokenizer"])

    def _set_tokenizer(self, json_text: str) -> None:
        tokenizer = Tokenizer.from_str(json_text)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Else a text "<pad>" would be the token of that name. Neither JSON nor pickles keep it.
        tokenizer.encode_special_tokens = True
        special = {i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
        self._tokenizer = tokenizer
        self._plain_ids = sorted(set(tokenizer.get_vocab().values()) - special)

    def _normalise(self, text: str) -> str:
        if not isinstance(text, str):
            raise RequestError(f"text is {type(text).__name__}; give a str")
        # A character is at least one byte: refuses without encoding what is far too large.
        size = len(text)
        if size <= self.max_text_bytes:
            try:
                size = len(text.encode())
            except UnicodeEncodeError as error:
                raise RequestError(
                    f"text is not Unicode: lone surrogate U+{ord(text[error.start]):04X} at "
                    f"character {error.start}; decode it before sending"
                ) from error
        if size > self.max_text_bytes:
            raise RequestError(
                f"text has over {self.max_text_bytes:,} bytes ({size:,}); shorten it"
            )
        if not text.strip():
            raise RequestError("text is empty; leave text out (None) to send the image alone")
        return unicodedata.normalize("NFC", text)

    def _fold(self, ids: list[int], text: str) -> list[int]:
        kept = self.max_tokens - FOLD_TOKENS
        head, tail = kept - kept // 2, kept // 2
        number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
        middle = []
        for _ in range(FOLD_TOKENS):
            number, place = divmod(number, len(self._plain_ids))
            middle.append(self._plain_ids[place])
        return ids[:head] + middle + ids[len(ids) - tail :]


def _labels(name: str, values: Sequence[int] | None, count: int) -> Tensor:
    if values is None:
        return torch.full((count,), -1, dtype=torch.int64)
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values for {count} requests; give one each")
    return torch.as_tensor(values, dtype=torch.int64)
