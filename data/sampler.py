"""Batches that hold equivalent requests and hard negatives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from data.requests import image_identity, scope_identity
from keynet.types import Request

SAME_DRAWING = 0.7  # of the equivalents; instances are what unseen concepts are served by


class HardNegativeBatchSampler(Sampler[list[int]]):
    """Batches of anchors, each with an equivalent request and hard negatives.

    Six requests an anchor, on three pictures: the anchor; an equivalent request (70 % of the time
    of the same drawing in another encoding, if there is one); the same question about another
    picture with another answer (half of the time a near concept); and for each of the three another
    question about the same encoded picture, which is then encoded once.
    Equivalents and the same question are of the anchor's scope: across scopes they tell nothing.
    A batch is a function of seed, epoch and its number alone, so that a resumed run sees what an
    uninterrupted one would have.

    Args:
        requests: The training requests.
        batch_size: Requests a batch.
        batches: Batches an epoch.
        seed: Seed.
    """

    def __init__(
        self, requests: Sequence[Request], *, batch_size: int, batches: int, seed: int
    ) -> None:
        if batch_size < 8:
            raise ValueError(f"batch_size={batch_size}: expected at least 8")
        self.batch_size, self.batches, self.seed = batch_size, batches, seed
        self.epoch = 0
        scopes = [scope_identity(request) for request in requests]
        self._group = [(scope, r.group) for scope, r in zip(scopes, requests, strict=True)]
        self._intent = [(scope, r.intent) for scope, r in zip(scopes, requests, strict=True)]
        self._picture = [request.tags.get("picture") for request in requests]
        self._order = np.array([int(request.tags.get("order", -1)) for request in requests])
        self._by_group = self._index(self._group)
        self._by_intent = self._index(self._intent)
        self._family = [request.tags.get("family") for request in requests]
        self._by_family = self._index(self._family)
        self._by_picture = self._index(self._picture)
        self._image = [image_identity(request) for request in requests]
        self._by_image = self._index(self._image)
        for members in self._by_intent.values():
            members.sort(key=lambda index: self._order[index])
        self._place = {
            index: place
            for members in self._by_intent.values()
            for place, index in enumerate(members)
        }

    @staticmethod
    def _index(labels: Sequence[Hashable]) -> dict[Hashable, list[int]]:
        members: dict[Hashable, list[int]] = defaultdict(list)
        for index, label in enumerate(labels):
            members[label].append(index)
        return members

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come next (Lightning calls this)."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.batches):
            yield self.batch(np.random.default_rng([self.seed, self.epoch, number]))

    def batch(self, rng: np.random.Generator) -> list[int]:
        """Return the request indices of one batch."""
        chosen: list[int] = []
        while len(chosen) < self.batch_size:
            anchor = int(rng.integers(len(self._group)))
            three = (anchor, self._equivalent(anchor, rng), self._other_picture(anchor, rng))
            for member in three:
                chosen += [member, self._other_question(member, rng)]
        return chosen[: self.batch_size]

    def _equivalent(self, anchor: int, rng: np.random.Generator) -> int:
        members = self._by_group[self._group[anchor]]
        tries = [members[int(i)] for i in rng.integers(len(members), size=4)]
        if rng.random() < SAME_DRAWING:
            same = self._by_picture[self._picture[anchor]]
            drawn = [same[int(i)] for i in rng.integers(len(same), size=24)]
            tries = [i for i in drawn if self._image[i] != self._image[anchor]] + tries
        for candidate in tries:
            if candidate != anchor and self._group[candidate] == self._group[anchor]:
                return candidate
        return anchor

    def _other_question(self, anchor: int, rng: np.random.Generator) -> int:
        members = self._by_image[self._image[anchor]]
        draws = [members[int(i)] for i in rng.integers(len(members), size=3)]
        return next((index for index in draws if index != anchor), draws[-1])

    def _other_picture(self, anchor: int, rng: np.random.Generator) -> int:
        members = self._by_intent[self._intent[anchor]]
        draws = rng.integers(len(members), size=8)
        if self._order[anchor] >= 0 and rng.random() < 0.5:
            near = self._place[anchor] + rng.integers(-12, 13, size=8)
            draws = np.concatenate([near.clip(0, len(members) - 1), draws])
        for candidate in (members[int(i)] for i in draws):
            if self._group[candidate] != self._group[anchor]:
                return candidate
        # An intent of one answer, as a caption is: the same kind of text about another picture.
        kin = self._by_family[self._family[anchor]]
        others = (kin[int(i)] for i in rng.integers(len(kin), size=8))
        return next((i for i in others if self._group[i] != self._group[anchor]), anchor)
