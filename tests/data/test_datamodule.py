from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import data.datamodule
from data.datamodule import (
    PAD_PICTURES,
    PAD_TEXTS,
    PAD_TOKENS,
    RequestBatches,
    RequestDataModule,
    number_samples,
)
from data.requests import CAPTION
from keynet.preprocess import Preprocessor
from keynet.types import Request, RequestError, TrainingBatch

SIZE = 16
Make = Callable[..., Tensor]


class FakeStem:
    fingerprint = "0" * 16

    def __init__(self, make: Make) -> None:
        self.make = make

    def __call__(self, *inputs: Tensor) -> Tensor:
        return self.make(*inputs)


def data_module(source: Any, **changes: Any) -> RequestDataModule:
    settings: dict[str, Any] = {
        "image_size": SIZE, "max_tokens": 32, "long_text": "error", "vocab_size": 300,
        "batch_size": 16, "batches_per_epoch": 3, "seed": 0, "num_workers": 0, "store_stems": False,
    }  # fmt: skip
    return RequestDataModule(source=source, **(settings | changes))


@pytest.fixture(scope="module")
def module(toy_source: Any) -> RequestDataModule:
    return data_module(toy_source)


def dataset(module: RequestDataModule, stem: Make | None = None) -> RequestBatches:
    stems = {} if stem is None else {"image": FakeStem(stem)}
    return RequestBatches(module.requests, module.preprocessor, stems)


def mean_colours(images: Tensor) -> Tensor:
    """A frozen part: [B, 3, S, S] to [B, 3, S / 4, S / 4]."""
    return avg_pool2d(images.float(), 4).to(torch.bfloat16)


@pytest.fixture
def mixed(module: RequestDataModule) -> list[int]:
    """Indices with the same picture twice, the same text twice, each modality absent."""
    image_alone = next(i for i, r in enumerate(module.requests) if r.text is None)
    text_alone = next(i for i, r in enumerate(module.requests) if r.image is None)
    return [0, 1, 0, 15, image_alone, text_alone, 2, 16]


def test_shapes_and_types(module: RequestDataModule, mixed: list[int]) -> None:
    batch = dataset(module)[mixed]
    unique_images = len({module.requests[i].image for i in mixed})
    unique_texts = len({module.requests[i].text for i in mixed})
    assert 4 <= unique_images < 8 and unique_texts < 8
    length = batch.tokens.shape[1]
    assert length % PAD_TOKENS == 0
    expected = {
        "images": (torch.uint8, (PAD_PICTURES, 3, SIZE, SIZE)),
        "image_mask": (torch.bool, (8,)),
        "tokens": (torch.int64, (PAD_TEXTS, length)),
        "token_mask": (torch.bool, (PAD_TEXTS, length)),
        "image_index": (torch.int64, (8,)),
        "text_index": (torch.int64, (8,)),
        "group": (torch.int64, (8,)),
        "entity": (torch.int64, (8,)),
        "original": (torch.int64, (8,)),
        "intent": (torch.int64, (8,)),
        "picture_id": (torch.int64, (8,)),
        "text_id": (torch.int64, (8,)),
        "described": (torch.bool, (8,)),
        "scope": (torch.int64, (8,)),
    }
    assert {n: (t.dtype, tuple(t.shape)) for n, t in batch._asdict().items()} == expected
    assert batch.image_index.max() == unique_images - 1
    assert batch.text_index.max() == unique_texts - 1
    added = PAD_PICTURES - unique_images
    assert torch.equal(batch.images[unique_images:], batch.images[:added])
    assert not batch.tokens[unique_texts:].any() and not batch.token_mask[unique_texts:].any()


def test_indices_give_each_request_its_own_picture_and_text(
    module: RequestDataModule, mixed: list[int]
) -> None:
    batch = dataset(module)[mixed]
    served = module.preprocessor([module.requests[i] for i in mixed])  # as in serving
    assert torch.equal(batch.images[batch.image_index], served.images)
    assert torch.equal(batch.image_mask, served.image_mask)
    length = batch.tokens.shape[1]
    assert torch.equal(batch.tokens[batch.text_index], served.tokens[:, :length])
    assert torch.equal(batch.token_mask[batch.text_index], served.token_mask[:, :length])
    assert not served.token_mask[:, length:].any()


def test_labels_number_groups_and_entities(module: RequestDataModule, mixed: list[int]) -> None:
    batch = dataset(module)[mixed]
    for name, numbers in (("group", batch.group), ("entity", batch.entity)):
        labels = [getattr(module.requests[i], name) for i in mixed]
        for i, one in enumerate(labels):
            for j, other in enumerate(labels):
                assert (numbers[i] == numbers[j]) == (one == other), (name, i, j)
    absent = mixed.index(next(i for i in mixed if module.requests[i].image is None))
    assert batch.entity[absent] == batch.original[absent] == -1


def test_numbers_of_groups_agree_between_batches(module: RequestDataModule) -> None:
    batches = dataset(module)
    assert batches[[0, 1]].group[0] == batches[[5, 0]].group[1]


def count_decoded(module: RequestDataModule, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    decoded: list[bytes] = []
    original = Preprocessor.image

    def image(self: Preprocessor, source: bytes) -> Tensor:
        decoded.append(source)
        return original(self, source)

    monkeypatch.setattr(Preprocessor, "image", image)
    return decoded


def test_a_picture_is_decoded_once_a_batch(
    module: RequestDataModule, monkeypatch: pytest.MonkeyPatch, mixed: list[int]
) -> None:
    decoded = count_decoded(module, monkeypatch)
    batches = dataset(module)
    first = batches[mixed]
    pictures = {module.requests[i].image for i in mixed} - {None}
    assert len(decoded) == len(pictures) and set(decoded) == pictures
    assert torch.equal(first.images, batches[mixed].images)


def test_with_a_stem_it_is_decoded_once(
    module: RequestDataModule, monkeypatch: pytest.MonkeyPatch, mixed: list[int]
) -> None:
    decoded = count_decoded(module, monkeypatch)
    batches = dataset(module, mean_colours)
    batches[mixed]
    batches[mixed]
    assert len(decoded) == len(set(decoded)) == len({r.image for r in module.requests} - {None})


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("stored", [False, True])
def test_the_shares_of_all_ranks_are_the_batch(
    module: RequestDataModule, mixed: list[int], world: int, stored: bool
) -> None:
    batches = dataset(module)
    if stored:
        stems = {"text": FakeStem(lambda tokens, mask: tokens.sum(1, keepdim=True).float())}
        batches = RequestBatches(module.requests, module.preprocessor, stems)
    whole = batches[mixed]
    shares = [batches.share(mixed, rank, world) for rank in range(world)]
    for share in shares:
        assert len(share.images) == len(shares[0].images)
        assert len(share.tokens) == len(shares[0].tokens)
        assert all(torch.equal(a, b) for a, b in zip(share[4:], whole[4:], strict=True))
    images = torch.cat([share.images for share in shares])
    assert torch.equal(images[: len(whole.images)], whole.images)
    assert world == 3 or len(images) == len(whole.images)
    lengths = torch.cat([share.token_mask.sum(1) for share in shares])
    assert torch.equal(lengths[whole.text_index], whole.token_mask.sum(1)[whole.text_index])
    sums = torch.cat([share.tokens.sum(1) for share in shares])
    assert torch.equal(sums[whole.text_index], whole.tokens.sum(1)[whole.text_index])


def test_a_rank_decodes_the_pictures_of_its_share_alone(
    module: RequestDataModule, monkeypatch: pytest.MonkeyPatch, mixed: list[int]
) -> None:
    decoded = count_decoded(module, monkeypatch)
    batches = dataset(module)
    whole = batches[mixed]
    alone = len(decoded)
    decoded.clear()
    batches.share(mixed, 1, len(whole.images))
    assert len(decoded) <= 1 < alone


def test_a_batch_that_cannot_be_shared_is_refused(module: RequestDataModule) -> None:
    three: Any = SimpleNamespace(global_rank=0, world_size=3)
    module.trainer = three
    with pytest.raises(ValueError, match=r"batch_size=16 is of all 3 ranks .* such as 18"):
        module.setup("fit")
    module.trainer = None
    module.setup("fit")


@pytest.mark.parametrize("stem_batch", [1, 5, 64])
def test_stored_outputs_of_the_stem_stand_for_the_pictures(
    module: RequestDataModule, monkeypatch: pytest.MonkeyPatch, mixed: list[int], stem_batch: int
) -> None:
    monkeypatch.setattr(data.datamodule, "STEM_BATCH", stem_batch)
    sizes = []

    def stem(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return mean_colours(images)

    plain, stored = dataset(module)[mixed], dataset(module, stem)[mixed]
    assert max(sizes) <= stem_batch
    assert stored.images.dtype == torch.bfloat16
    assert torch.equal(stored.images, mean_colours(plain.images))  # an absent one's is of zeros
    assert all(map(torch.equal, stored[1:], plain[1:]))


@pytest.mark.parametrize("stem", [None, mean_colours])
def test_what_is_kept_is_not_changed_by_a_batch_that_is(
    module: RequestDataModule, stem: Make | None
) -> None:
    batches = dataset(module, stem)
    text_alone = next(i for i, r in enumerate(module.requests) if r.image is None)
    expected = batches[[0, text_alone]].images.clone()
    batches[[0, text_alone]].images.fill_(7)
    assert torch.equal(batches[[0, text_alone]].images, expected)


@pytest.mark.parametrize("store_stems", [True, False])
def test_the_module_stores_outputs_of_its_stem_when_told_to(
    toy_source: Any, store_stems: bool
) -> None:
    module = data_module(toy_source, store_stems=store_stems)
    module.stems = {"image": FakeStem(mean_colours)}
    dtype = next(iter(module.train_dataloader())).images.dtype
    assert dtype == (torch.bfloat16 if store_stems else torch.uint8)


def test_batches_of_pictures_alone_or_texts_alone(module: RequestDataModule) -> None:
    pictures = [i for i, r in enumerate(module.requests) if r.text is None]
    texts = [i for i, r in enumerate(module.requests) if r.image is None]
    batch = dataset(module)[pictures]
    assert batch.tokens.shape == (PAD_TEXTS, PAD_TOKENS) and not batch.token_mask.any()
    batch = dataset(module)[texts]
    assert not batch.image_mask.any()
    assert not batch.images.any()
    assert (batch.entity == -1).all()


def test_the_loader_gives_the_batches_of_its_sampler(module: RequestDataModule) -> None:
    loader = module.train_dataloader()
    loaded = list(loader)
    expected = [dataset(module)[indices] for indices in loader.sampler]
    assert len(loaded) == len(loader) == 3
    for one, other in zip(loaded, expected, strict=True):
        assert isinstance(one, TrainingBatch)
        assert all(map(torch.equal, one, other))
    loader.sampler.set_epoch(1)
    assert not all(map(torch.equal, next(iter(loader)), expected[0]))


def test_the_tokenizer_knows_the_texts_of_training(module: RequestDataModule) -> None:
    assert len(module.preprocessor.tokenise("what colour is it")) <= 8
    assert module.preprocessor.max_tokens == 32


def test_a_text_too_long_for_the_model_is_an_error(toy_source: Any) -> None:
    module = data_module(toy_source, max_tokens=8, vocab_size=256)
    with pytest.raises(RequestError, match=r"^training request 0: .*the model takes 8"):
        dataset(module)
    folded = data_module(toy_source, max_tokens=16, vocab_size=256, long_text="fold")
    assert dataset(folded)[[0]].tokens.shape == (PAD_TEXTS, 16)


def test_requests_are_those_of_the_training_split() -> None:
    class Source:
        def requests(self, split: str) -> list[Request]:
            return [Request(text=f"{split} {n}") for n in range(3)]

    assert [r.text for r in data_module(Source()).requests] == ["train 0", "train 1", "train 2"]


@pytest.mark.parametrize("stored", [True, False])
def test_a_bad_training_request_is_named(module: RequestDataModule, stored: bool) -> None:
    requests = list(module.requests)
    requests[3] = replace(requests[3], group=None)
    with pytest.raises(RequestError, match="training request 3 has no group"):
        RequestBatches(requests, module.preprocessor)
    requests[3] = replace(module.requests[3], image=b"no picture")
    stems = {"image": FakeStem(lambda images: images)} if stored else {}
    with pytest.raises(RequestError, match="training request 3: image is not an image"):
        RequestBatches(requests, module.preprocessor, stems)[[3]]


def test_numbers_of_samples_are_those_of_pictures_and_texts(
    module: RequestDataModule, mixed: list[int]
) -> None:
    samples = module.samples
    assert len(set(samples.pictures)) == len(samples.pictures) == 24  # 6 colours, 4 sizes
    assert len(set(samples.texts)) == len(samples.texts)
    batches = dataset(module)
    for chosen in (mixed, list(range(len(module.requests)))):
        batch = batches[chosen]
        for number, picture, text in zip(chosen, batch.picture_id, batch.text_id, strict=True):
            request = module.requests[number]
            if request.image is None:
                assert picture == -1
            else:
                assert samples.pictures[picture] == request.image
            if request.text is None:
                assert text == -1
            else:
                assert samples.texts[text] == request.text
    assert not batch.described.any()
    assert module.samples is samples


class Captions:
    """Questions about three pictures, two of them captioned, one caption of a picture not asked."""

    name = "captions"
    pictures = tuple(np.full((4, 4, 3), value, np.uint8) for value in (1, 2, 2, 4))

    def requests(self, split: str) -> list[Request]:
        asked = [(0, "what"), (1, "which"), (2, "what"), (None, "why"), (1, None), (0, "a one")]
        return [
            Request(
                image=None if n is None else self.pictures[n], text=text, group=f"{n} {text}",
                tags={"family": CAPTION if text == "a one" else "name", "split": split},
            )
            for n, text in asked
        ]  # fmt: skip

    def captions(self, split: str) -> list[Request]:
        shown = [(0, "a one"), (0, "one"), (2, "two"), (3, "two")]
        tags = {"family": CAPTION, "split": split}
        return [
            Request(image=self.pictures[n], text=text, entity=str(n), tags=tags)
            for n, text in shown
        ]


def test_pictures_and_texts_of_captions_are_numbered_after_those_of_requests() -> None:
    source = Captions()
    samples = number_samples(source, source.requests("train"))
    # Equal pixels in two arrays are two pictures, as in a batch.
    assert [id(p) for p in samples.pictures] == [id(p) for p in source.pictures]
    assert list(samples.texts) == ["what", "which", "why", "a one", "one", "two"]
    assert samples.pairs.tolist() == [[0, 3], [0, 4], [2, 5], [3, 5]]
    described, asked = source.captions("calibration"), source.requests("calibration")
    assert [r.text for r in samples.held_out()] == [r.text for r in [*described, *asked]]
    assert {r.tags["split"] for r in samples.held_out()[: len(described)]} == {"calibration"}


def test_a_caption_that_is_trained_on_is_marked_as_such() -> None:
    made = data_module(Captions())
    batch = dataset(made)[list(range(6))]
    assert batch.described.tolist() == [False] * 5 + [True]
    assert batch.picture_id.tolist() == [0, 1, 2, -1, 1, 0]
    assert batch.text_id.tolist() == [0, 1, 0, 2, -1, 3]


def test_a_source_without_captions_has_no_pairs(toy_source: Any) -> None:
    samples = number_samples(toy_source, toy_source.requests("train"))
    assert samples.pairs.shape == (0, 2)
    assert samples.pairs.dtype == torch.int64
    assert samples.held_out() == toy_source.requests("calibration")


def test_scopes_are_numbered_whatever_modalities_there_are(module: RequestDataModule) -> None:
    assert not dataset(module).scope.any()
    scopes: list[dict[str, str]] = [{"tenant": "a"}, {"tenant": "b"}, {"tenant": "a"}, {}]
    made = [
        replace(request, scope=scope)
        for request, scope in zip(module.requests[14:18], scopes, strict=True)
    ]
    assert len({request.modalities for request in made}) > 1
    assert RequestBatches(made, module.preprocessor)[range(4)].scope.tolist() == [0, 1, 0, 2]


def test_a_training_without_equivalents_is_refused() -> None:
    one = Request(text="what is it?", group="cat")
    source = SimpleNamespace(name="few", attribution=(), requests=lambda split: [one])
    with pytest.raises(ValueError, match="few: the training split"):
        data_module(source).setup("fit")
