"""Requests of a data source as training batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data.requests import Source
from data.sampler import HardNegativeBatchSampler
from data.tokenizer import train_tokenizer
from keynet.preprocess import Preprocessor
from keynet.types import Request, TrainingBatch


class RequestBatches(Dataset[TrainingBatch]):
    """Batches by lists of request indices; a picture is decoded once and kept up to a limit.

    Args:
        requests: Training requests.
        preprocessor: Decodes and tokenises, as in serving.
        cache_gib: Decoded pictures kept in memory, GiB.
    """

    def __init__(
        self, requests: Sequence[Request], preprocessor: Preprocessor, *, cache_gib: float
    ) -> None:
        self.requests = requests
        self.preprocessor = preprocessor
        self.group = _numbers([request.group for request in requests])
        self.entity = _numbers([request.entity for request in requests])
        self._tokens: dict[str, list[int]] = {}
        self._pictures: dict[Hashable, Tensor] = {}
        picture_bytes = 3 * preprocessor.image_size**2
        self._kept_pictures = int(cache_gib * 2**30 / picture_bytes)

    def _picture(self, request: Request) -> Tensor:
        known = self._pictures.get(request.image)
        if known is not None:
            return known
        picture = self.preprocessor.image(request.image)
        if len(self._pictures) < self._kept_pictures:
            self._pictures[request.image] = picture
        return picture

    def _text(self, text: str | None) -> list[int]:
        if text is None:
            return []
        if text not in self._tokens:
            self._tokens[text] = self.preprocessor.tokenise(text)
        return self._tokens[text]

    def __getitem__(self, indices: Sequence[int]) -> TrainingBatch:
        """Return the requests ``indices`` as one batch."""
        requests = [self.requests[index] for index in indices]
        image_row: dict[Hashable, int] = {}
        text_row: dict[str | None, int] = {}
        image_index = [image_row.setdefault(r.image, len(image_row)) for r in requests]
        text_index = [text_row.setdefault(r.text, len(text_row)) for r in requests]
        size = self.preprocessor.image_size
        absent = torch.zeros(3, size, size, dtype=torch.uint8)
        pictures: dict[int, Tensor] = {}
        for request, row in zip(requests, image_index, strict=True):
            if row not in pictures:
                pictures[row] = absent if request.image is None else self._picture(request)
        texts = [self._text(text) for text in text_row]
        length = max(1, *map(len, texts)) if texts else 1
        tokens = torch.zeros(len(texts), length, dtype=torch.int64)
        token_mask = torch.zeros(len(texts), length, dtype=torch.bool)
        for row, ids in enumerate(texts):
            tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
            token_mask[row, : len(ids)] = True
        return TrainingBatch(
            images=torch.stack([pictures[row] for row in range(len(image_row))]),
            image_mask=torch.tensor([r.image is not None for r in requests]),
            tokens=tokens,
            token_mask=token_mask,
            image_index=torch.tensor(image_index),
            text_index=torch.tensor(text_index),
            group=self.group[list(indices)],
            entity=self.entity[list(indices)],
        )


class RequestDataModule(pl.LightningDataModule):
    """Training batches of a data source, with the tokenizer trained on its texts.

    Args:
        source: Where requests come from.
        image_size: Pixels a side.
        max_tokens: Longest text, a multiple of 8.
        long_text: ``error`` or ``fold`` (see ``keynet.preprocess.Preprocessor``).
        vocab_size: Tokens of the tokenizer.
        batch_size: Requests a batch.
        batches_per_epoch: Batches between two checkpoints.
        seed: Of the batches.
        num_workers: Processes that decode.
        cache_gib: Decoded pictures kept by each of them, GiB.
    """

    def __init__(
        self,
        *,
        source: Source,
        image_size: int,
        max_tokens: int,
        long_text: str,
        vocab_size: int,
        batch_size: int,
        batches_per_epoch: int,
        seed: int,
        num_workers: int,
        cache_gib: float,
    ) -> None:
        super().__init__()
        self.source = source
        self.batch_size, self.batches_per_epoch = batch_size, batches_per_epoch
        self.seed, self.num_workers, self.cache_gib = seed, num_workers, cache_gib
        self.requests = source.requests("train")
        texts = {request.text for request in self.requests if request.text is not None}
        tokenizer = train_tokenizer(texts, vocab_size=vocab_size)
        self.preprocessor = Preprocessor(image_size, tokenizer, max_tokens, long_text=long_text)

    def train_dataloader(self) -> DataLoader[TrainingBatch]:
        """Return batches that are a function of seed and epoch."""
        sampler = HardNegativeBatchSampler(
            self.requests,
            batch_size=self.batch_size,
            batches=self.batches_per_epoch,
            seed=self.seed,
        )
        dataset = RequestBatches(self.requests, self.preprocessor, cache_gib=self.cache_gib)
        return DataLoader(
            dataset,
            sampler=sampler,
            batch_size=None,  # the sampler gives whole batches, and Lightning sets its epoch
            num_workers=self.num_workers,
            persistent_workers=False,  # a worker that lives on would keep the first epoch's number
        )


def _numbers(labels: Sequence[str | None]) -> Tensor:
    known: dict[str, int] = {}
    numbers = [-1 if x is None else known.setdefault(x, len(known)) for x in labels]
    return torch.tensor(numbers, dtype=torch.int64)
