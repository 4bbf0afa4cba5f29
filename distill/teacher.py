"""What a teacher is: requests in, embeddings out, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from keynet.pictures import open_image
from keynet.types import Request, RequestError

MODALITIES = ("image", "text")
TEMPERATURE = 0.07  # of a teacher that was not trained with one of its own; SPEC K3
CHUNK = 64  # pictures or texts that pass through a teacher at once


class TeacherError(ValueError):
    """A teacher that cannot teach; the message says why and what to do."""


class TeacherOutput(NamedTuple):
    """Embeddings float32 [B, D] as the teacher gives them, not normalised.

    None where the teacher lacks the modality, zero rows where the request does.
    """

    image: Tensor | None
    text: Tensor | None


class Teacher(Protocol):
    """What distillation needs of a teacher; one of your own is a class with these, no base class.

    ``temperature`` divides the cosines of its pictures and texts. ``fingerprint`` is equal for
    equal weights and preprocessing: stored embeddings are valid for one fingerprint.
    """

    name: str
    modalities: tuple[str, ...]  # of "image" and "text"
    dim: int
    temperature: float

    @property
    def fingerprint(self) -> str: ...

    def encode(self, requests: Sequence[Request]) -> TeacherOutput:
        """Return the embeddings of a batch, without gradient; decodes and tokenises itself."""
        ...

    def to(self, device: torch.device | str, dtype: torch.dtype) -> None:
        """Move and cast the weights."""
        ...


class FrozenTeacher:
    """A teacher around one torch module; subclasses say how pictures and texts enter it.

    Not a module itself: its weights stay out of checkpoints and optimisers.

    Args:
        name: In reports and stores.
        module: The network, with weights; set to evaluation mode and frozen.
        modalities: What it embeds.
        dim: Width of its embeddings.
        preprocessing: All that decides what enters the network, as plain JSON.
        temperature: Divides its cosines.

    Raises:
        TeacherError: When a weight is not finite.
    """

    def __init__(
        self,
        *,
        name: str,
        module: nn.Module,
        modalities: tuple[str, ...],
        dim: int,
        preprocessing: Mapping[str, Any],
        temperature: float = TEMPERATURE,
    ) -> None:
        for weight, tensor in module.state_dict().items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise TeacherError(
                    f"teacher {name}: weight {weight} is not finite; its file is damaged, "
                    "fetch it again"
                )
        self.name, self.modalities, self.dim = name, modalities, dim
        self.temperature = temperature
        self.module = module.requires_grad_(False).eval()
        self.preprocessing = dict(preprocessing)
        self._device, self._dtype = torch.device("cpu"), torch.float32

    @cached_property
    def fingerprint(self) -> str:
        """Of class, weights as loaded, and preprocessing: 16 hex digits."""
        digest = hashlib.sha256(type(self).__name__.encode())
        digest.update(json.dumps(self.preprocessing, sort_keys=True).encode())
        for weight, tensor in sorted(self.module.state_dict().items()):
            digest.update(f"{weight} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> None:
        """Move and cast the weights; the fingerprint stays that of the loaded ones."""
        _ = self.fingerprint
        self._device, self._dtype = torch.device(device), dtype
        self.module.to(device=self._device, dtype=dtype)

    @torch.no_grad()
    def encode(self, requests: Sequence[Request]) -> TeacherOutput:
        """Return the embeddings of a batch.

        Raises:
            TeacherError: When one is not finite.
        """
        image = text = None
        if "image" in self.modalities:
            rows = [n for n, request in enumerate(requests) if request.image is not None]
            image = self._rows(requests, rows, "image")
        if "text" in self.modalities:
            rows = [n for n, request in enumerate(requests) if request.text is not None]
            # By length: a chunk is padded to its longest.
            rows.sort(key=lambda n: len(str(requests[n].text)))
            text = self._rows(requests, rows, "text")
        return TeacherOutput(image, text)

    def _rows(self, requests: Sequence[Request], rows: Sequence[int], modality: str) -> Tensor:
        found = torch.zeros(len(requests), self.dim)
        for first in range(0, len(rows), CHUNK):
            chunk = rows[first : first + CHUNK]
            if modality == "image":
                pixels = torch.stack([self._pixels_of(requests[n]) for n in chunk])
                features = self.image_features(pixels.to(self._device, self._dtype))
            else:
                inputs = self.tokenise([str(requests[n].text) for n in chunk])
                features = self.text_features({k: v.to(self._device) for k, v in inputs.items()})
            if features.shape != (len(chunk), self.dim):
                raise TeacherError(
                    f"teacher {self.name}: {modality} embeddings are {tuple(features.shape)}, "
                    f"expected {(len(chunk), self.dim)}"
                )
            if not torch.isfinite(features).all():
                raise TeacherError(
                    f"teacher {self.name}: an {modality} embedding is not finite; "
                    "run it in another precision or leave it out"
                )
            found[chunk] = features.float().cpu()
        return found

    def _pixels_of(self, request: Request) -> Tensor:
        if request.image is None:
            raise RequestError("request has no image")
        return self.pixels(open_image(request.image))

    def pixels(self, picture: Image.Image) -> Tensor:
        """Return what enters the image network for one picture, float [3, S, S]."""
        raise NotImplementedError

    def image_features(self, pixels: Tensor) -> Tensor:
        """Return embeddings [N, D] of [N, 3, S, S]."""
        raise NotImplementedError

    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        """Return what enters the text network, each [N, L]."""
        raise NotImplementedError

    def text_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return embeddings [N, D]."""
        raise NotImplementedError
