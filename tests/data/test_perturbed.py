from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
from PIL import Image

from data.perturbed import perturbed, perturbed_texts, with_perturbed
from keynet.types import Request


def picture(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (50, 50), colour).save(buffer, "PNG")
    return buffer.getvalue()


REQUESTS = [
    Request(image=picture((n, 0, 0)), text=f"is there a thing numbered {n}?", group=str(n))
    for n in range(40)
]


def test_a_text_is_cut_off_and_misspelt() -> None:
    text = "is there a bicycle in the picture?"
    found = perturbed_texts(text)
    assert found == perturbed_texts(text)
    assert found["text_truncated"] == text[:31]
    misspelt = found["text_misspelt"]
    assert Counter(misspelt) == Counter(text) and misspelt != text
    assert sum(a != b for a, b in zip(misspelt, text, strict=True)) in (2, 3, 4)


@pytest.mark.parametrize(
    ("text", "left"), [("?", set()), ("是", set()), ("aa", {"text_truncated"})]
)
def test_a_text_that_is_too_short_is_left_as_it_is(text: str, left: set[str]) -> None:
    assert set(perturbed_texts(text)) == left


def test_each_perturbation_changes_one_modality_and_no_label() -> None:
    found = perturbed(REQUESTS[0])
    assert len(found) == 10
    for name, request in found.items():
        changed_text = name.startswith("text")
        assert (request.text != REQUESTS[0].text) == changed_text
        assert (request.image != REQUESTS[0].image) != changed_text
        assert request.group == "0"
    assert set(perturbed(Request(text="what is it"))) == {"text_truncated", "text_misspelt"}
    assert len(perturbed(Request(image=REQUESTS[0].image))) == 8


def test_a_share_of_the_pictures_comes_again_perturbed() -> None:
    twice = [*REQUESTS, *(Request(image=r.image, text="what?", group="w") for r in REQUESTS)]
    found = with_perturbed(twice, 0.5, seed=0)
    assert found == with_perturbed(twice, 0.5, seed=0)
    assert found[: len(twice)] == twice
    copies = found[len(twice) :]
    assert len(copies) % 2 == 0 and 10 <= len(copies) / 2 <= 30
    images = [copy.image for copy in copies]
    assert images[: len(images) // 2] == images[len(images) // 2 :]  # one perturbation a picture
    assert not {*images} & {r.image for r in twice}
    assert 0 < sum(copy.text == "what?" for copy in copies[len(copies) // 2 :]) < len(copies) / 2
    kinds = {Image.open(io.BytesIO(image)).format for image in images}
    assert kinds == {"JPEG", "PNG"}  # WebP is kept to judge by
    assert with_perturbed(twice, 0, seed=0) == twice
    assert len(with_perturbed(twice, 1, seed=0)) == 2 * len(twice)


def test_texts_alone_are_not_copied() -> None:
    alone = [Request(text="what is it", group="a")]
    assert with_perturbed(alone, 1.0, seed=0) == alone


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "foo", None, True])
def test_what_is_no_share_is_an_error(share: Any) -> None:
    with pytest.raises(ValueError, match=r"data\.perturbed=.*: expected a share"):
        with_perturbed(REQUESTS, share, seed=0)
