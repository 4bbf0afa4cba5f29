"""Requests as a bad line or a hurried user makes them: what a key should bear."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from data.perturb import perturbations
from data.requests import image_identity
from keynet.pictures import open_image
from keynet.types import Request

LETTERS_A_SLIP = 12
# Those that training may use; the others are to show what it has not seen.
TRAINED = (
    "jpeg_q10", "jpeg_q50", "jpeg_q90", "resize_half", "crop_4_percent", "text_misspelt",
)  # fmt: skip


def perturbed_texts(text: str) -> dict[str, str]:
    """Return a text cut off and misspelt; a text too short for either is left out.

    Its last tenth is cut off, one character at least. Misspelt, two neighbouring letters change
    places, once in 12 characters; which ones follows from the text.
    """
    found = {"text_truncated": text[: len(text) - max(1, len(text) // 10)].rstrip()}
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    rng, letters = np.random.default_rng(seed), list(text)
    places = [n for n in range(len(text) - 1) if text[n].isalpha() and text[n + 1].isalpha()]
    for _ in range(max(1, len(text) // LETTERS_A_SLIP)):
        if places:
            n = places[int(rng.integers(len(places)))]
            letters[n], letters[n + 1] = letters[n + 1], letters[n]
    found["text_misspelt"] = "".join(letters)
    return {name: other for name, other in found.items() if other and other != text}


def perturbed(request: Request) -> dict[str, Request]:
    """Return the request under each perturbation of its picture, then of its text, by name."""
    found = {}
    if request.image is not None:
        for name, image in perturbations(open_image(request.image)).items():
            found[name] = replace(request, image=image)
    if request.text is not None:
        for name, text in perturbed_texts(request.text).items():
            found[name] = replace(request, text=text)
    return found


def with_perturbed(requests: Sequence[Request], share: float, seed: int) -> list[Request]:
    """Return the requests, then those of a share of the pictures, perturbed.

    Of each chosen picture one perturbation of ``TRAINED``, the same for all that is asked about it;
    every second text of these is misspelt too. Labels stay: the copies are equivalent.

    Args:
        requests: Of any kind; those without a picture are not copied.
        share: Of the pictures.
        seed: Of what is chosen.

    Raises:
        ValueError: When the share is no number or out of range.
    """
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise ValueError(f"data.perturbed={share!r}: expected a share, a number from 0 to 1")
    rng = np.random.default_rng(seed)
    images: dict[Hashable, bytes | None] = {}
    copies = []
    for request in requests if share else ():
        if request.image is None:
            continue
        identity = image_identity(request)
        if identity not in images:
            chosen = None
            if rng.random() < share:
                found = perturbations(open_image(request.image))
                names = [name for name in found if name in TRAINED]
                chosen = found[names[int(rng.integers(len(names)))]]
            images[identity] = chosen
        image = images[identity]
        if image is None:
            continue
        text = request.text
        if text is not None and rng.random() < 0.5:
            text = perturbed_texts(text).get("text_misspelt", text)
        copies.append(replace(request, image=image, text=text))
    return [*requests, *copies]
