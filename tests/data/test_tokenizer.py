from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from data.tokenizer import train_tokenizer

TEXTS = [
    "What is this?",
    "What does this show?",
    "Was ist das?",
    "这是什么",
    "Что это такое?",
] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, vocab_size=300)


def test_the_order_of_the_texts_does_not_matter(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(reversed(TEXTS), vocab_size=300).to_str() == tokenizer.to_str()
    assert train_tokenizer(TEXTS[:1] * 9, vocab_size=300).to_str() != tokenizer.to_str()


def test_vocab_size_is_a_cap(tokenizer: Tokenizer) -> None:
    assert 256 < tokenizer.get_vocab_size() <= 300
    assert train_tokenizer(["a"], vocab_size=300).get_vocab_size() == 256
    assert sorted(tokenizer.get_vocab().values()) == list(range(tokenizer.get_vocab_size()))


def test_training_shortens_its_texts(tokenizer: Tokenizer) -> None:
    text = "What is this?"
    plain = train_tokenizer(["a"], vocab_size=256)
    assert len(tokenizer.encode(text).ids) <= len(plain.encode(text).ids) / 2


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = train_tokenizer(["What is this?"], vocab_size=256)
    ids = tokenizer.encode(text).ids
    normal = unicodedata.normalize("NFC", text)
    assert ids
    assert tokenizer.decode(ids, skip_special_tokens=False) in (normal, f" {normal}")


def test_a_script_without_spaces_is_cut_into_characters(tokenizer: Tokenizer) -> None:
    once, in_a_phrase = tokenizer.encode("图案").ids, tokenizer.encode("这是什么图案").ids
    assert in_a_phrase[-len(once) + 1 :] == once[1:]  # the first token is the space
    assert len(train_tokenizer(["这是什么"] * 9, vocab_size=300).encode("这是什么").ids) == 5


def test_two_spellings_of_one_character_are_one_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("caf\u00e9").ids == tokenizer.encode("cafe\u0301").ids


def test_a_vocabulary_without_room_for_bytes() -> None:
    with pytest.raises(ValueError, match="vocab_size=255: expected at least 256"):
        train_tokenizer(TEXTS, vocab_size=255)
