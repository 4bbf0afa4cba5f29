"""Teacher embeddings, made once: bf16, in shards, memory-mapped.

A folder for one teacher and one data set: ``store.json`` and safetensors files of up to
``SHARD_ROWS`` rows each. Rows are numbered as ``keynet.types.Samples`` numbers pictures and texts;
a picture that training sees in several augmentations is several pictures, so that a row belongs to
the very bytes that the student sees.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from distill.teacher import Teacher, TeacherError
from keynet.progress import progress_bar
from keynet.types import Request, Samples

FORMAT = 1
SHARD_ROWS = 4096
CHUNK = 256  # rows between two steps of the progress bar
ROWS = "rows"
DESCRIPTION = "store.json"


class StoreError(ValueError):
    """A store that must not be used; the message says why and what to do."""


def samples_digest(samples: Samples) -> str:
    """Return 16 hex digits of all pictures and texts in their order."""
    digest = hashlib.sha256()
    for picture in samples.pictures:
        if isinstance(picture, np.ndarray):
            digest.update(f"{picture.dtype} {picture.shape}".encode())
            content = np.ascontiguousarray(picture).tobytes()
        else:
            content = picture if isinstance(picture, bytes) else Path(picture).read_bytes()
        digest.update(hashlib.sha256(content).digest())
    digest.update(b"texts")
    for text in samples.texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:16]


def store_folder(root: str | Path, teacher: Teacher, data: str) -> Path:
    """Return where the embeddings of this teacher for the samples of digest ``data`` belong."""
    return Path(root) / f"{teacher.name}-{teacher.fingerprint}-{data}"


def torchrun_rank() -> tuple[int, int]:
    """Return the number of this process and of all, as torchrun says; (0, 1) without it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def write_store(
    folder: Path, teacher: Teacher, samples: Samples, data: str, *, rank: int = 0, world: int = 1
) -> None:
    """Encode what is missing; stopped, it goes on with the shards that are not there yet.

    Args:
        folder: From ``store_folder``.
        teacher: Whose embeddings.
        samples: Pictures and texts.
        data: Their digest.
        rank: This process takes every ``world``-th shard.
        world: Number of processes.

    Raises:
        StoreError: When the folder holds a store of another teacher or other data, or is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    description = _description(teacher, samples, data)
    if (folder / DESCRIPTION).exists():
        _check_description(folder, description)
    else:
        text = json.dumps(description, indent=1)
        _replace(folder / DESCRIPTION, lambda path: path.write_text(text, encoding="utf-8"))
    shards = [
        (modality, number)
        for modality in teacher.modalities
        for number in range(_num_shards(_count(samples, modality)))
    ]
    wanted = [
        (modality, number)
        for modality, number in shards[rank::world]
        if not _is_whole(folder, modality, number, _count(samples, modality), teacher.dim)
    ]
    rows = sum(len(_span(number, _count(samples, modality))) for modality, number in wanted)
    with progress_bar(total=rows, desc=f"embeddings of {teacher.name}") as bar:
        for modality, number in wanted:
            span = _span(number, _count(samples, modality))
            parts = []
            for first in range(span.start, span.stop, CHUNK):
                chunk = range(first, min(first + CHUNK, span.stop))
                parts.append(encode_samples(teacher, samples, modality, chunk))
                bar.update(len(chunk))
            tensors = {ROWS: torch.cat(parts).to(torch.bfloat16)}
            _replace(_shard(folder, modality, number), lambda path, t=tensors: save_file(t, path))


def encode_samples(teacher: Teacher, samples: Samples, modality: str, ids: Sequence[int]) -> Tensor:
    """Return float32 [len(ids), Dk], as the teacher gives them."""
    if modality == "image":
        found = teacher.encode([Request(image=samples.pictures[n]) for n in ids]).image
    else:
        found = teacher.encode([Request(text=samples.texts[n]) for n in ids]).text
    if found is None or found.shape != (len(ids), teacher.dim):
        shape = None if found is None else tuple(found.shape)
        raise TeacherError(
            f"teacher {teacher.name} gave {modality} embeddings {shape}, "
            f"expected {(len(ids), teacher.dim)}: its `dim` or `modalities` is wrong"
        )
    if not torch.isfinite(found).all():
        raise TeacherError(
            f"teacher {teacher.name} gave an {modality} embedding that is not finite; "
            "run it in another precision or leave it out"
        )
    return found.detach().float()


class Store:
    """Reads the rows of one store.

    Args:
        folder: Of the store.
        teacher: The teacher that it must be of.
        samples: What it must have the rows of.
        data: Their digest.

    Raises:
        StoreError: When it is of another teacher or other data, or not whole.
    """

    def __init__(self, folder: Path, teacher: Teacher, samples: Samples, data: str) -> None:
        _check_description(folder, _description(teacher, samples, data))
        self._dim = teacher.dim
        self._shards: dict[str, list[Tensor]] = {}
        for modality in teacher.modalities:
            count = _count(samples, modality)
            self._shards[modality] = []
            for number in range(_num_shards(count)):
                rows = _read(_shard(folder, modality, number))
                expected = (len(_span(number, count)), teacher.dim)
                if rows is None or tuple(rows.shape) != expected:
                    raise StoreError(
                        f"{_shard(folder, modality, number)} is missing or cut off; "
                        "make it again: python -m scripts.precompute_teachers"
                    )
                self._shards[modality].append(rows)

    def rows(self, modality: str, ids: Tensor) -> Tensor:
        """Return float32 [N, Dk] for the sample numbers ``ids`` int64 [N]."""
        shards = self._shards[modality]
        found = [shards[n // SHARD_ROWS][n % SHARD_ROWS] for n in ids.tolist()]
        return torch.stack(found).float() if found else torch.zeros(0, self._dim)


def _description(teacher: Teacher, samples: Samples, data: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "teacher": teacher.name,
        "fingerprint": teacher.fingerprint,
        "dim": teacher.dim,
        "modalities": list(teacher.modalities),
        "data": data,
        "pictures": len(samples.pictures),
        "texts": len(samples.texts),
        "shard_rows": SHARD_ROWS,
    }


def _count(samples: Samples, modality: str) -> int:
    return len(samples.pictures if modality == "image" else samples.texts)


def _check_description(folder: Path, wanted: dict[str, Any]) -> None:
    mend = f"remove {folder} and make it again: python -m scripts.precompute_teachers"
    try:
        found = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder} is no store of embeddings ({error}); {mend}") from error
    for key, value in wanted.items():
        has = found.get(key) if isinstance(found, dict) else found
        if has != value:
            raise StoreError(f"{folder}: {key} is {has!r}, expected {value!r}; {mend}")


def _num_shards(count: int) -> int:
    return -(-count // SHARD_ROWS)


def _span(number: int, count: int) -> range:
    return range(number * SHARD_ROWS, min((number + 1) * SHARD_ROWS, count))


def _shard(folder: Path, modality: str, number: int) -> Path:
    return folder / f"{modality}-{number:05d}.safetensors"


def _is_whole(folder: Path, modality: str, number: int, count: int, dim: int) -> bool:
    rows = _read(_shard(folder, modality, number))
    return rows is not None and tuple(rows.shape) == (len(_span(number, count)), dim)


def _read(path: Path) -> Tensor | None:
    """Return the rows, mapped and not read; None where the file is missing or not whole."""
    try:
        with safe_open(path, framework="pt") as file:
            rows: Tensor = file.get_tensor(ROWS)
            return rows if rows.dtype == torch.bfloat16 else None
    except (OSError, SafetensorError):
        return None


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:  # a full disk is either, by who writes
        temporary.unlink(missing_ok=True)
        raise StoreError(
            f"{path} cannot be written ({error}); make room, or give another place: distill.store"
        ) from error
