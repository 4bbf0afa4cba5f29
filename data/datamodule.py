"""Requests of a data source as training batches."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data.features import Stem, content_digest, features_digest, in_chunks, kept
from data.held_out import content_numbers
from data.perturbed import with_perturbed
from data.requests import (
    CAPTION,
    CaptionedSource,
    Source,
    check_equivalents,
    image_identity,
    scope_identity,
)
from data.sampler import HardNegativeBatchSampler
from data.tokenizer import train_tokenizer
from keynet.preprocess import Preprocessor
from keynet.progress import progress_bar
from keynet.types import Request, RequestError, Samples, TrainingBatch

STEM_BATCH = 64
PERTURBED_SEED = 0  # not the run's: a picture's features are made once for all runs
PAD_PICTURES, PAD_TEXTS, PAD_TOKENS = 8, 32, 8


class RequestBatches(Dataset[TrainingBatch]):
    """Batches by lists of request indices.

    Args:
        requests: Training requests.
        preprocessor: Decodes and tokenises, as in serving.
        stems: Frozen parts of encoders, ``image`` of uint8 [B, 3, S, S] and ``text`` of tokens and
            mask [B, L]: what they make is made once and stands in batches in place of pixels and
            tokens. Of a text it is features [V, W], with a mask [V, 1].
        features: Folder in which that is kept; None keeps it in memory.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        preprocessor: Preprocessor,
        stems: Mapping[str, Stem] | None = None,
        features: str | Path | None = None,
    ) -> None:
        for number, request in enumerate(requests):
            if request.group is None:
                raise RequestError(f"training request {number} has no group; say what it equals")
        self.requests = requests
        self.preprocessor = preprocessor
        self.group = _numbers([request.group for request in requests])
        self.entity = _numbers([r.entity if r.image is not None else None for r in requests])
        self.original = _numbers([_original(request) for request in requests])
        self.intent = _numbers([r.intent if r.text is not None else None for r in requests])
        self.described = torch.tensor([r.tags.get("family") == CAPTION for r in requests])
        self.picture_id = _numbers([_picture(r) for r in requests])
        self.text_id = _numbers([r.text for r in requests])
        self.scope = _numbers([scope_identity(r) for r in requests])
        self._tokens = self._tokenised()
        size = preprocessor.image_size
        self._absent = torch.zeros(3, size, size, dtype=torch.uint8)
        self._pictures: dict[Hashable, Tensor] = {}
        self._texts: dict[str, Tensor] = {}
        for name, store in (("image", self._store_pictures), ("text", self._store_texts)):
            if stems is not None and name in stems:
                store(stems[name], features)

    def _store_pictures(self, stem: Stem, folder: str | Path | None) -> None:
        first_of: dict[Hashable, int] = {}
        for number, request in enumerate(self.requests):
            if request.image is not None:
                first_of.setdefault(image_identity(request), number)
        numbers = list(first_of.values())
        images = (self.requests[number].image for number in numbers)
        contents = (content_digest(image) for image in images if image is not None)
        with progress_bar(total=len(numbers) + 1, desc="frozen image features") as bar:

            def make(chunk: range) -> Tensor:
                bar.update(len(chunk))
                # After the last picture the absent one.
                pictures = [
                    self._picture(numbers[n]) if n < len(numbers) else self._absent for n in chunk
                ]
                return stem(torch.stack(pictures))

            rows = kept(
                folder,
                f"image-{features_digest('image', stem, self.preprocessor, contents)}",
                len(numbers) + 1,
                lambda: in_chunks(len(numbers) + 1, STEM_BATCH, make),
            )
        self._pictures.update(zip(first_of, rows[:-1].unbind(0), strict=True))
        self._absent = rows[-1]

    def _store_texts(self, stem: Stem, folder: str | Path | None) -> None:
        # By length: a batch is padded to its longest. The absent text is the last.
        texts = sorted(
            (t for t in self._tokens if t is not None), key=lambda t: (-len(self._tokens[t]), t)
        )
        ids = [*(self._tokens[t] for t in texts), []]
        contents = (text.encode() + b"\0" for text in texts)
        rows = kept(
            folder,
            f"text-{features_digest('text', stem, self.preprocessor, contents)}",
            len(ids),
            lambda: in_chunks(
                len(ids), STEM_BATCH, lambda n: stem(*_padded(ids[n.start : n.stop]))
            ),
        )
        self._texts.update(zip(texts, rows[:-1].unbind(0), strict=True))
        self._absent_text = rows[-1]

    def _picture(self, number: int) -> Tensor:
        request = self.requests[number]
        if request.image is None:
            return self._absent
        stored = self._pictures.get(image_identity(request))
        if stored is not None:
            return stored
        try:
            return self.preprocessor.image(request.image)
        except RequestError as error:
            raise RequestError(f"training request {number}: {error}") from error

    def _tokenised(self) -> dict[str | None, list[int]]:
        """All texts at once, so that one that is too long fails before the training, not in it."""
        tokens: dict[str | None, list[int]] = {None: []}
        for number, request in enumerate(self.requests):
            if request.text is not None and request.text not in tokens:
                try:
                    tokens[request.text] = self.preprocessor.tokenise(request.text)
                except RequestError as error:
                    raise RequestError(f"training request {number}: {error}") from error
        return tokens

    def __getitem__(self, indices: Sequence[int]) -> TrainingBatch:
        """Return the requests ``indices`` as one batch."""
        return self.share(indices, 0, 1)

    def share(self, indices: Sequence[int], rank: int, world: int) -> TrainingBatch:
        """Return the requests ``indices`` as one batch with the pictures and texts of one rank.

        Pictures and texts are cut into equal shares, one after the other; all else is of the whole
        batch, and ``image_index`` and ``text_index`` are places in the shares of all ranks.
        """
        requests = [self.requests[index] for index in indices]
        image_row: dict[Hashable, int] = {}
        text_row: dict[str | None, int] = {}
        image_index = [image_row.setdefault(image_identity(r), len(image_row)) for r in requests]
        text_index = [text_row.setdefault(r.text, len(text_row)) for r in requests]
        shown = dict(zip(image_index, indices, strict=True))  # a request of each picture
        # Few distinct shapes: a kernel is compiled for each. Pictures are padded by pictures of the
        # batch, which keeps its BatchNorm statistics.
        count = _padded_count(len(image_row), PAD_PICTURES, world)
        own = [shown[row % len(image_row)] for row in range(count)][_share(count, rank, world)]
        pictures = {number: self._picture(number) for number in dict.fromkeys(own)}
        tokens, token_mask = self._text_tensors(list(text_row), rank, world)
        return TrainingBatch(
            images=torch.stack([pictures[number] for number in own]),
            image_mask=torch.tensor([r.image is not None for r in requests]),
            tokens=tokens,
            token_mask=token_mask,
            image_index=torch.tensor(image_index),
            text_index=torch.tensor(text_index),
            group=self.group[list(indices)],
            entity=self.entity[list(indices)],
            original=self.original[list(indices)],
            intent=self.intent[list(indices)],
            picture_id=self.picture_id[list(indices)],
            text_id=self.text_id[list(indices)],
            described=self.described[list(indices)],
            scope=self.scope[list(indices)],
        )

    def _text_tensors(
        self, texts: Sequence[str | None], rank: int, world: int
    ) -> tuple[Tensor, Tensor]:
        if self._texts:
            count = _padded_count(len(texts), 1, world)
            own = [texts[row % len(texts)] for row in range(count)][_share(count, rank, world)]
            found = [self._absent_text if text is None else self._texts[text] for text in own]
            return torch.stack(found), torch.tensor([[text is not None] for text in own])
        ids = [self._tokens[text] for text in texts]
        count = _padded_count(len(texts), PAD_TEXTS, world)
        return _padded([*ids, *[[]] * (count - len(ids))][_share(count, rank, world)])


class RankBatches(Dataset[TrainingBatch]):
    """Batches by lists of request indices, with the pictures and texts that one rank encodes.

    Args:
        batches: Of all.
        rank: Number of this rank.
        world: How many there are.
    """

    def __init__(self, batches: RequestBatches, rank: int, world: int) -> None:
        self.batches, self.rank, self.world = batches, rank, world

    def __getitem__(self, indices: Sequence[int]) -> TrainingBatch:
        """Return the share of the requests ``indices``."""
        return self.batches.share(indices, self.rank, self.world)


class RequestDataModule(pl.LightningDataModule):
    """Training batches of a data source.

    Args:
        source: Where requests come from.
        image_size: Pixels a side.
        max_tokens: Longest text, a multiple of 8.
        long_text: ``error`` or ``fold`` (see ``keynet.preprocess.Preprocessor``).
        tokenizer: The one that the text encoder reads; None trains one on the training texts.
        vocab_size: Tokens of a tokenizer that is trained.
        batch_size: Requests a batch, over all ranks; a multiple of their number.
        batches_per_epoch: Batches between two checkpoints.
        seed: Of the batches.
        num_workers: Processes that make batches.
        store_stems: Make what frozen parts of encoders make of every picture and text once, which
            halves a step on a CPU; needs ``stems`` (set by ``KeyModule``) and memory.
        features: Folder in which that is kept for other runs; None keeps it in memory.
        perturbed: Share of the pictures that are trained on perturbed, too
            (``data.perturbed.with_perturbed``; the same ones in every run).
    """

    def __init__(
        self,
        *,
        source: Source,
        image_size: int,
        max_tokens: int,
        long_text: str,
        tokenizer: Tokenizer | None = None,
        vocab_size: int,
        batch_size: int,
        batches_per_epoch: int,
        seed: int,
        num_workers: int,
        store_stems: bool,
        features: str | Path | None = None,
        perturbed: float = 0.0,
    ) -> None:
        super().__init__()
        self.source = source
        self.batch_size, self.batches_per_epoch = batch_size, batches_per_epoch
        self.seed, self.num_workers, self.store_stems = seed, num_workers, store_stems
        self.features = features
        self.stems: dict[str, Stem] = {}
        self.requests = with_perturbed(source.requests("train"), perturbed, PERTURBED_SEED)
        if tokenizer is None:
            texts = {request.text for request in self.requests if request.text is not None}
            tokenizer = train_tokenizer(texts, vocab_size=vocab_size)
        self.preprocessor = Preprocessor(image_size, tokenizer, max_tokens, long_text=long_text)

    def setup(self, stage: str) -> None:
        """Raise ValueError where a batch cannot be shared, or no two requests are equivalent."""
        check_equivalents(self.source.name, self.requests)
        _, world = self._ranks()
        if self.batch_size % world:
            raise ValueError(
                f"batch_size={self.batch_size} is of all {world} ranks together and cannot be cut "
                f"into equal shares; give a multiple of {world}, such as "
                f"{-(-self.batch_size // world) * world}"
            )

    def _ranks(self) -> tuple[int, int]:
        trainer = self.trainer
        return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)

    @cached_property
    def samples(self) -> Samples:
        """What teachers see of the training requests, numbered as in batches."""
        return number_samples(self.source, self.requests)

    @cached_property
    def trained_on(self) -> NDArray[np.uint64]:
        """A number for each distinct picture, and text alone, of the training requests."""
        return np.unique(content_numbers(self.requests))

    @cached_property
    def batches(self) -> RequestBatches:
        """The training requests as batches by indices, with what ``stems`` make of them."""
        stems = self.stems if self.store_stems else None
        return RequestBatches(self.requests, self.preprocessor, stems, self.features)

    def train_dataloader(self) -> DataLoader[TrainingBatch]:
        """Return this rank's share of batches that are a function of seed and epoch alone."""
        sampler = HardNegativeBatchSampler(
            self.requests,
            batch_size=self.batch_size,
            batches=self.batches_per_epoch,
            seed=self.seed,
        )
        return DataLoader(
            RankBatches(self.batches, *self._ranks()),
            sampler=sampler,
            batch_size=None,  # the sampler gives whole batches, and Lightning sets its epoch
            num_workers=self.num_workers,
            persistent_workers=False,  # a worker that lives on would keep the first epoch's number
        )


def number_samples(source: Source, requests: Sequence[Request]) -> Samples:
    """Number the distinct pictures and texts of ``requests``, then those of the captions.

    A batch's ``picture_id`` and ``text_id`` are these numbers: both count by first appearance.
    """
    captions = source.captions("train") if isinstance(source, CaptionedSource) else []
    pictures: dict[Hashable, int] = {}
    texts: dict[str, int] = {}
    contents = []
    for request in [*requests, *captions]:
        if request.image is not None and image_identity(request) not in pictures:
            pictures[image_identity(request)] = len(pictures)
            contents.append(request.image)
        if request.text is not None:
            texts.setdefault(request.text, len(texts))
    found = [[pictures[image_identity(r)], texts[str(r.text)]] for r in captions]
    pairs = torch.tensor(found, dtype=torch.int64).view(-1, 2)  # int64 without any, too

    def held_out() -> Sequence[Request]:
        described = source.captions("calibration") if isinstance(source, CaptionedSource) else []
        return [*described, *source.requests("calibration")]

    return Samples(contents, list(texts), pairs, held_out)


def _padded_count(count: int, multiple: int, world: int) -> int:
    """Return ``count`` rounded up so that every rank has as many."""
    step = math.lcm(multiple, world)
    return -(-count // step) * step


def _share(count: int, rank: int, world: int) -> slice:
    return slice(rank * count // world, (rank + 1) * count // world)


def _padded(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return tokens and mask [V, L], L the longest text rounded up."""
    longest = max([1, *map(len, texts)])
    length = longest + -longest % PAD_TOKENS
    tokens = torch.zeros(len(texts), length, dtype=torch.int64)
    mask = torch.zeros(len(texts), length, dtype=torch.bool)
    for row, ids in enumerate(texts):
        tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        mask[row, : len(ids)] = True
    return tokens, mask


def _picture(request: Request) -> Hashable:
    return None if request.image is None else image_identity(request)


def _original(request: Request) -> Hashable:
    if request.image is None or request.entity is None:
        return None
    return request.entity, request.tags.get("picture")


def _numbers(labels: Sequence[Hashable]) -> Tensor:
    known: dict[Hashable, int] = {}
    numbers = [-1 if x is None else known.setdefault(x, len(known)) for x in labels]
    return torch.tensor(numbers, dtype=torch.int64)
