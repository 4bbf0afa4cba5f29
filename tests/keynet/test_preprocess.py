from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from keynet.preprocess import Preprocessor
from keynet.types import Request, RequestError


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["what is this", "is it red"] * 4, trainer)
    return tokenizer


@pytest.fixture
def preprocessor(tokenizer: Tokenizer) -> Preprocessor:
    return Preprocessor(8, tokenizer, 32)


@pytest.fixture
def folding(tokenizer: Tokenizer) -> Preprocessor:
    return Preprocessor(8, tokenizer, 32, long_text="fold")


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_its_first_frame_and_is_counted(
    kind: str, preprocessor: Preprocessor
) -> None:
    frames = [Image.new("RGB", (8, 8), c) for c in ("red", "blue", "lime")]
    options = {"lossless": True} if kind == "WEBP" else {}
    moving, still = io.BytesIO(), io.BytesIO()
    frames[0].save(moving, kind, save_all=True, append_images=frames[1:], **options)
    frames[0].save(still, kind)
    assert preprocessor.image(moving.getvalue())[:, 4, 4].tolist() == [255, 0, 0]
    assert preprocessor.animated == 1
    preprocessor.image(still.getvalue())
    assert preprocessor.animated == 1


# Texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text is empty"),
        (" \n\t\u3000", "text is empty"),
        ("is it \ud83d red", r"lone surrogate U\+D83D at character 6"),
        (b"bytes", "text is bytes; give a str"),
        ("a" * 1_000_001, r"over 1,000,000 bytes \(1,000,001\)"),
        ("漢" * 400_000, r"over 1,000,000 bytes \(1,200,000\)"),
        ("xy" * 50_000, "text has 100000 tokens and the model takes 32.*long_text='fold'"),
    ],
)
def test_texts_that_are_refused(text: str, message: str, preprocessor: Preprocessor) -> None:
    with pytest.raises(RequestError, match=message):
        preprocessor.tokenise(text)


def test_composed_and_decomposed_letters_are_one_text(preprocessor: Preprocessor) -> None:
    assert preprocessor.tokenise("caf\u00e9") == preprocessor.tokenise("cafe\u0301")


def test_special_tokens_cannot_be_written_in_a_text(preprocessor: Preprocessor) -> None:
    for one in (preprocessor, pickle.loads(pickle.dumps(preprocessor))):
        assert len(one.tokenise("<pad>")) > 1
        assert 0 not in one.tokenise("<pad>")


def test_the_callers_tokenizer_is_left_alone_and_its_truncation_ignored(
    tokenizer: Tokenizer,
) -> None:
    mine = Tokenizer.from_str(tokenizer.to_str())
    mine.enable_truncation(4)
    mine.enable_padding(length=4)
    one = Preprocessor(8, mine, 32)
    assert len(one.tokenise("is it red or blue")) > 4
    assert mine.truncation is not None
    assert not mine.encode_special_tokens


@pytest.mark.parametrize("place", [0, 45_000, 99_999])
def test_folded_texts_that_differ_anywhere_get_other_tokens(
    place: int, folding: Preprocessor
) -> None:
    long = "xy" * 50_000
    other = long[:place] + "q" + long[place + 1 :]
    ids = folding.tokenise(long)
    assert len(ids) == 32
    assert ids == folding.tokenise(long) != folding.tokenise(other)
    assert folding.folded == 3
    assert ids[:12] == folding.tokenise("xy" * 6)
    assert 0 not in ids
    assert folding.long_text_digest(long) != folding.long_text_digest(other)


def test_a_text_that_fits_is_not_folded(folding: Preprocessor, preprocessor: Preprocessor) -> None:
    fits = "xy" * 16
    assert folding.tokenise(fits) == preprocessor.tokenise(fits)
    assert folding.long_text_digest(fits) is None
    assert folding.folded == 0


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_becomes_tokens_or_a_request_error(text: str, tokenizer: Tokenizer) -> None:
    try:
        ids = Preprocessor(8, tokenizer, 64, long_text="fold").tokenise(text)
        assert 0 < len(ids) <= 64
    except RequestError:
        assert not text.strip() or any(0xD800 <= ord(c) < 0xE000 for c in text)


# Batches


def test_absent_modalities_are_zeros_with_a_false_mask(preprocessor: Preprocessor) -> None:
    picture = np.full((4, 4, 3), 9, dtype=np.uint8)
    batch = preprocessor(
        [Request(image=picture, text="what is this"), Request(image=picture), Request(text="hm")],
        group=[5, 6, 7],
    )
    assert batch.image_mask.tolist() == [True, True, False]
    assert batch.token_mask.any(1).tolist() == [True, False, True]
    assert not batch.images[2].any()
    assert not batch.tokens[~batch.token_mask].any()
    assert batch.group.tolist() == [5, 6, 7]
    assert batch.sample_id.tolist() == [-1, -1, -1]
    assert batch.tokens.dtype == torch.int64


@pytest.mark.parametrize(("letters", "length"), [(1, 8), (8, 8), (9, 16), (32, 32)])
def test_length_is_the_longest_rounded_up_to_eight(
    letters: int, length: int, preprocessor: Preprocessor
) -> None:
    batch = preprocessor([Request(text="q" * letters), Request(text="q")])
    assert batch.tokens.shape == (2, length)
    assert batch.token_mask.sum(1).tolist() == [letters, 1]


def test_a_batch_without_text_has_a_length(preprocessor: Preprocessor) -> None:
    assert preprocessor([Request(image=np.zeros((2, 2, 3), np.uint8))]).tokens.shape == (1, 8)


def test_a_bad_request_is_named_by_its_position(preprocessor: Preprocessor) -> None:
    with pytest.raises(RequestError, match=r"^request 1: text is empty"):
        preprocessor([Request(text="a"), Request(text=" ")])
    with pytest.raises(RequestError, match=r"^request 11: image is empty"):
        preprocessor([Request(text="a"), Request(image=b"", text="a")], first=10)
    with pytest.raises(RequestError, match="no requests"):
        preprocessor([])
    with pytest.raises(ValueError, match="group has 1 values for 2 requests"):
        preprocessor([Request(text="a"), Request(text="b")], group=[1])


def test_a_request_with_neither_is_refused() -> None:
    with pytest.raises(RequestError, match="neither image nor text"):
        Request()


@pytest.mark.parametrize(
    "arguments",
    [
        {"image_size": 0},
        {"max_tokens": 12},
        {"max_tokens": 8, "long_text": "fold"},
        {"long_text": "cut"},
        {"background": (0, 0, 256)},
        {"max_pixels": 200_000_000},
    ],
)
def test_settings_out_of_range(arguments: dict[str, object], tokenizer: Tokenizer) -> None:
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=name):
        Preprocessor(**({"image_size": 8, "tokenizer": tokenizer, "max_tokens": 32} | arguments))  # type: ignore[arg-type]
