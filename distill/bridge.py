"""A cross-modal teacher of two unimodal ones: a linear MM-Align head over both, kept frozen."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aligners.mm_align import MMAlign
from distill.teacher import Teacher, TeacherError, TeacherOutput
from keynet.types import Request

log = logging.getLogger(__name__)


class BridgeTeacher:
    """Two frozen encoders, bridged by a head that is trained on pairs of picture and caption.

    A linear map suffices and a hidden layer fits the training pairs instead (docs/experiments.md);
    dropout on the embeddings is what keeps it from that.

    Args:
        name: In reports and stores.
        image: The teacher of pictures.
        text: The teacher of texts.
        weights: Trained head, as a run leaves it in ``RUN/NAME.safetensors``; None trains
            one on the pairs of the training data.
        dim: Width of the common space.
        epochs: Passes over the pairs.
        batch_size: Pairs a batch; their other captions are the negatives.
        learning_rate: Peak rate.
        dropout: Share of the entries of an embedding that is left out.
        seed: Of weights, batches and dropout.
    """

    modalities = ("image", "text")

    def __init__(
        self,
        *,
        name: str,
        image: Teacher,
        text: Teacher,
        weights: str | Path | None = None,
        dim: int = 384,
        epochs: int = 12,
        batch_size: int = 512,
        learning_rate: float = 1e-3,
        dropout: float = 0.3,
        seed: int = 0,
    ) -> None:
        for modality, part in (("image", image), ("text", text)):
            if modality not in part.modalities:
                raise TeacherError(
                    f"teacher {name}: its {modality} part {part.name} has no {modality}"
                )
        self.name, self.image, self.text, self.dim = name, image, text, dim
        self.epochs, self.batch_size, self.seed = epochs, batch_size, seed
        self.learning_rate, self.dropout = learning_rate, dropout
        self.temperature = 0.05
        self._head: _Head | None = None
        if weights is not None:
            self.load(Path(weights))

    @property
    def trained(self) -> bool:
        """Whether there is a head."""
        return self._head is not None

    @property
    def head(self) -> _Head:
        """The head; TeacherError before it is trained."""
        if self._head is None:
            raise TeacherError(
                f"teacher {self.name} has no head yet: give distill.teachers.{self.name}.weights, "
                "or train on data with captions"
            )
        return self._head

    def recipe(self) -> str:
        """Return 16 hex digits of all that decides a trained head but the data."""
        settings = (self.dim, self.epochs, self.batch_size, self.learning_rate, self.dropout)
        whole = f"{self.image.fingerprint} {self.text.fingerprint} {settings} {self.seed}"
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        """Of both parts and the head: 16 hex digits."""
        digest = hashlib.sha256(f"{self.image.fingerprint} {self.text.fingerprint}".encode())
        for name, tensor in sorted(self.head.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> None:
        """Move and cast the parts; the head is two small matrices and stays."""
        self.image.to(device, dtype)
        self.text.to(device, dtype)

    def encode(self, requests: Sequence[Request]) -> TeacherOutput:
        """Return both modalities in the common space; zero rows where a request lacks one."""
        rows = {"image": self.image.encode(requests).image, "text": self.text.encode(requests).text}
        found = {}
        for modality, embedding in rows.items():
            if embedding is None:
                raise TeacherError(f"teacher {self.name}: its {modality} part gave no {modality}")
            present = torch.tensor([getattr(r, modality) is not None for r in requests])
            found[modality] = self.project(modality, embedding) * present[:, None]
        return TeacherOutput(**found)

    @torch.no_grad()
    def project(self, modality: str, rows: Tensor) -> Tensor:
        """Return unit rows [N, D] of one part's embeddings."""
        return self.head(modality, rows)

    def fit(self, image: Tensor, text: Tensor, pairs: Tensor) -> None:
        """Train the head on the CPU.

        Args:
            image: Embeddings of the pictures [P, Di], from the image part.
            text: Embeddings of the texts [V, Dt], from the text part.
            pairs: int64 [N, 2], row of the picture and of the text that describes it.

        Raises:
            TeacherError: When there are too few pairs to tell them apart.

        Source: symmetric InfoNCE with a learned temperature, as CLIP (Radford et al., 2021).
        """
        pictures = pairs[:, 0].unique()
        if len(pictures) < 8:
            raise TeacherError(
                f"teacher {self.name}: the data has {len(pictures)} pictures with captions, at "
                f"least 8 are needed to train it; leave it out: ~distill.teachers.{self.name}"
            )
        generator = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            head = _Head(
                image[pictures].mean(0), text[pairs[:, 1].unique()].mean(0), self.dim, self.dropout
            )
            optimizer = torch.optim.AdamW(head.groups(), lr=self.learning_rate)
            batch = min(self.batch_size, len(pictures))
            steps = max(1, self.epochs * len(pairs) // batch)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=self.learning_rate, total_steps=steps + 1, pct_start=0.03
            )
            order = pairs[pairs[:, 0].argsort(stable=True)]
            counts = torch.bincount(pairs[:, 0])[pictures]
            first = counts.cumsum(0) - counts
            for step in range(steps):
                chosen = torch.randperm(len(pictures), generator=generator)[:batch]
                caption = (torch.rand(batch, generator=generator) * counts[chosen]).long()
                rows = order[first[chosen] + caption]
                same = rows[:, 1, None] == rows[None, :, 1]
                loss = head.contrast(image[rows[:, 0]], text[rows[:, 1]], same)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                if step % max(1, steps // 4) == 0 or step == steps - 1:
                    log.info(
                        "%s: step %d of %d, loss %.3f", self.name, step + 1, steps, loss.item()
                    )
        self._take(head)

    def save(self, path: Path) -> None:
        """Write the head as safetensors."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        save_file(self.head.state_dict(), temporary)
        os.replace(temporary, path)

    def load(self, path: Path) -> None:
        """Read a head; TeacherError where the file is missing, damaged or of other widths."""
        try:
            state = load_file(path)
        except (OSError, SafetensorError) as error:
            raise TeacherError(
                f"teacher {self.name}: weights {path} cannot be read ({error})"
            ) from error
        head = _Head(torch.zeros(self.image.dim), torch.zeros(self.text.dim), self.dim, 0.0)
        expected = {name: tensor.shape for name, tensor in head.state_dict().items()}
        found = {name: tensor.shape for name, tensor in state.items()}
        if found != expected:
            differing = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
            raise TeacherError(
                f"teacher {self.name}: weights {path} do not fit {self.image.name} and "
                f"{self.text.name} at width {self.dim}: {', '.join(differing)}"
            )
        damaged = [n for n, tensor in sorted(state.items()) if not torch.isfinite(tensor).all()]
        if damaged:
            raise TeacherError(
                f"teacher {self.name}: {damaged[0]} in {path} is not finite; train it again"
            )
        head.load_state_dict(state)
        self._take(head)

    def _take(self, head: _Head) -> None:
        self._head = head.eval().requires_grad_(False)
        self.temperature = float(torch.exp(-head.log_scale))


class _Head(nn.Module):
    """MM-Align over centred embeddings, with a temperature."""

    image_mean: Tensor
    text_mean: Tensor

    def __init__(self, image_mean: Tensor, text_mean: Tensor, dim: int, dropout: float) -> None:
        super().__init__()
        widths = {"image": len(image_mean), "text": len(text_mean)}
        self.align = MMAlign(input_dims=widths, key_dim=dim, dropout=dropout)
        self.log_scale = nn.Parameter(torch.tensor(3.0))  # a temperature of 0.05
        self.register_buffer("image_mean", image_mean.clone())
        self.register_buffer("text_mean", text_mean.clone())

    def groups(self) -> list[dict[str, object]]:
        """Parameter groups: decay for the matrices alone."""
        matrices = [p for p in self.parameters() if p.ndim == 2]
        others = [p for p in self.parameters() if p.ndim != 2]
        return [
            {"params": matrices, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0.0},
        ]

    def forward(self, modality: str, rows: Tensor) -> Tensor:
        """Return unit rows of one modality."""
        mean = self.image_mean if modality == "image" else self.text_mean
        return self.align.project(modality, rows - mean)

    def contrast(self, image: Tensor, text: Tensor, same: Tensor) -> Tensor:
        """Return the symmetric InfoNCE of B rows that belong together.

        ``same`` bool [B, B] says which texts are equal: each of them is as right as the own one.
        """
        logits = self("image", image) @ self("text", text).T * self.log_scale.exp()
        right = same / same.sum(1, keepdim=True)
        return (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
