from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import distill.store
from distill.store import (
    Store,
    StoreError,
    encode_samples,
    samples_digest,
    store_folder,
    write_store,
)
from distill.teacher import TeacherError
from keynet.types import Samples

Make = Callable[..., Any]
MEND = "make it again: python -m scripts.precompute_teachers"


@pytest.fixture(autouse=True)
def five_rows_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 pictures are three shards, 24 texts five; a shard is two chunks."""
    monkeypatch.setattr(distill.store, "SHARD_ROWS", 5)
    monkeypatch.setattr(distill.store, "CHUNK", 3)


@pytest.fixture
def samples(make_samples: Make) -> Samples:
    return make_samples()


@pytest.fixture
def written(tmp_path: Path, make_teacher: Make, samples: Samples) -> tuple[Path, Any]:
    teacher = make_teacher()
    folder = store_folder(tmp_path, teacher, samples_digest(samples))
    write_store(folder, teacher, samples, samples_digest(samples))
    teacher.asked.clear()
    return folder, teacher


def opened(folder: Path, teacher: Any, samples: Samples) -> Store:
    return Store(folder, teacher, samples, samples_digest(samples))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_rows_come_back_by_sample_number_within_bf16(
    written: tuple[Path, Any], samples: Samples
) -> None:
    store = opened(*written, samples)
    for modality, count in (("image", 12), ("text", 24)):
        exact = encode_samples(written[1], samples, modality, range(count))
        found = store.rows(modality, torch.arange(count))
        assert found.dtype == torch.float32
        assert torch.equal(found, exact.bfloat16().float())
        torch.testing.assert_close(found, exact, rtol=2**-8, atol=0)
        ids = torch.tensor([count - 1, 0, 7, 0, 5, 4])
        assert torch.equal(store.rows(modality, ids), found[ids])
        assert store.rows(modality, ids[:0]).shape == (0, 8)


def test_it_is_several_shards_and_says_what_it_is_of(
    written: tuple[Path, Any], samples: Samples
) -> None:
    folder, teacher = written
    expected = {f"image-{n:05d}.safetensors" for n in range(3)}
    expected |= {f"text-{n:05d}.safetensors" for n in range(5)}
    assert set(files(folder)) == expected | {"store.json"}
    assert folder.name == f"own-{teacher.fingerprint}-{samples_digest(samples)}"
    said = json.loads((folder / "store.json").read_text())
    assert said["fingerprint"] == teacher.fingerprint
    assert (said["dim"], said["pictures"], said["texts"]) == (8, 12, 24)


def test_a_value_takes_two_bytes(
    tmp_path: Path, make_teacher: Make, make_samples: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    teacher, samples = make_teacher(dim=384, modalities=("text",)), make_samples(1500)
    write_store(tmp_path / "s", teacher, samples, "data")
    size = sum(path.stat().st_size for path in (tmp_path / "s").iterdir())
    assert 2 <= size / (3000 * 384) <= 2.2


def test_rows_are_read_from_the_file_when_they_are_asked_for(
    written: tuple[Path, Any], samples: Samples
) -> None:
    store = opened(*written, samples)
    shard = written[0] / "text-00001.safetensors"
    with shard.open("r+b") as file:  # in place: the last row of what is mapped
        file.seek(-8 * 2, 2)
        file.write(torch.full((8,), 7.0).bfloat16().view(torch.uint8).numpy().tobytes())
    assert torch.equal(store.rows("text", torch.tensor([9])), torch.full((1, 8), 7.0))


@pytest.mark.parametrize("world", [2, 3, 20])
def test_several_ranks_write_what_one_writes(
    tmp_path: Path, written: tuple[Path, Any], samples: Samples, world: int
) -> None:
    folder, teacher = written
    for rank in range(world):
        write_store(
            tmp_path / "ranks", teacher, samples, samples_digest(samples), rank=rank, world=world
        )
        if rank == 0:
            assert 0 < len(teacher.asked) <= 5 * -(-8 // world)  # every world-th of eight shards
    assert files(tmp_path / "ranks") == files(folder)
    assert len(teacher.asked) == 36  # nothing twice


def test_a_whole_store_is_not_made_again(written: tuple[Path, Any], samples: Samples) -> None:
    write_store(*written, samples, samples_digest(samples))
    assert written[1].asked == []


def test_killed_half_way_it_goes_on_with_what_is_missing(
    written: tuple[Path, Any], samples: Samples
) -> None:
    folder, teacher = written
    whole = files(folder)
    (folder / "image-00002.safetensors").unlink()
    (folder / "text-00001.safetensors").unlink()
    half = folder / "text-00001.safetensors.123.tmp"
    half.write_bytes(whole["text-00001.safetensors"][:50])
    write_store(folder, teacher, samples, samples_digest(samples))
    assert teacher.asked == [str(p) for p in samples.pictures[10:]] + list(samples.texts[5:10])
    half.unlink()
    assert files(folder) == whole


class KilledError(Exception):
    """Stands for a process that ends while it encodes."""


def test_a_teacher_that_is_killed_leaves_whole_shards(
    tmp_path: Path, make_teacher: Make, samples: Samples, written: tuple[Path, Any]
) -> None:
    teacher = make_teacher()
    encode = teacher.encode

    def until_the_twelfth(requests: Any) -> Any:
        if len(teacher.asked) >= 12:
            raise KilledError
        return encode(requests)

    teacher.encode = until_the_twelfth
    data = samples_digest(samples)
    with pytest.raises(KilledError):
        write_store(tmp_path / "s", teacher, samples, data)
    with pytest.raises(StoreError, match="is missing or cut off"):
        opened(tmp_path / "s", teacher, samples)
    teacher.encode = encode
    write_store(tmp_path / "s", teacher, samples, data)
    assert files(tmp_path / "s") == files(written[0])
    assert len(teacher.asked) == 36


@pytest.mark.parametrize("size", [0, 4, 60, -1])
def test_a_shard_that_is_cut_off_is_told_and_made_again(
    written: tuple[Path, Any], samples: Samples, size: int
) -> None:
    folder, teacher = written
    shard = folder / "image-00001.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:size])
    with pytest.raises(StoreError, match=f"image-00001.safetensors is missing or cut off; {MEND}"):
        opened(folder, teacher, samples)
    write_store(folder, teacher, samples, samples_digest(samples))
    assert shard.read_bytes() == whole
    assert len(teacher.asked) == 5


def test_a_shard_of_another_place_is_no_shard(written: tuple[Path, Any], samples: Samples) -> None:
    folder, teacher = written
    shutil.copy(folder / "image-00002.safetensors", folder / "image-00001.safetensors")  # 2 rows
    with pytest.raises(StoreError, match=r"image-00001\.safetensors is missing or cut off"):
        opened(folder, teacher, samples)


def test_another_teacher_of_the_same_name(
    written: tuple[Path, Any], make_teacher: Make, samples: Samples
) -> None:
    folder, _ = written
    other = make_teacher(seed=1)
    data = samples_digest(samples)
    assert store_folder(folder.parent, other, data) != folder
    message = rf"fingerprint is '\w+', expected '{other.fingerprint}'; remove .* and {MEND}"
    for use in (write_store, Store):
        with pytest.raises(StoreError, match=message) as caught:
            use(folder, other, samples, data)
        assert "\n" not in str(caught.value)
    assert other.asked == []


def test_other_data(written: tuple[Path, Any], samples: Samples, make_samples: Make) -> None:
    folder, teacher = written
    for other in (make_samples(13), samples._replace(texts=[*samples.texts[:-1], "question 99"])):
        for use in (write_store, Store):
            with pytest.raises(StoreError, match=r"data is .* expected .*; remove"):
                use(folder, teacher, other, samples_digest(other))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 0}', "\udcff"])
def test_a_damaged_description(written: tuple[Path, Any], samples: Samples, content: str) -> None:
    folder, teacher = written
    (folder / "store.json").write_bytes(content.encode(errors="surrogateescape"))
    for use in (write_store, Store):
        with pytest.raises(StoreError, match=f"remove .* and {MEND}") as caught:
            use(folder, teacher, samples, samples_digest(samples))
        assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_store(tmp_path: Path, make_teacher: Make, samples: Samples) -> None:
    with pytest.raises(StoreError, match="is no store of embeddings"):
        opened(tmp_path, make_teacher(), samples)


def test_another_number_of_rows_a_shard(
    written: tuple[Path, Any], samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill.store, "SHARD_ROWS", 4)
    with pytest.raises(StoreError, match="shard_rows is 5, expected 4"):
        opened(*written, samples)


def test_embeddings_of_another_width_or_modality_than_the_teacher_says(
    tmp_path: Path, make_teacher: Make, samples: Samples
) -> None:
    wide = make_teacher()
    wide.dim = 9
    wide.encode = make_teacher(dim=8).encode
    with pytest.raises(TeacherError, match=r"teacher own gave image embeddings \(3, 8\), expected"):
        write_store(tmp_path / "a", wide, samples, "data")
    mute = make_teacher(modalities=("text",))
    mute.encode = make_teacher(modalities=("image",)).encode
    with pytest.raises(TeacherError, match="text embeddings None, expected"):
        write_store(tmp_path / "b", mute, samples, "data")


def test_embeddings_that_are_not_finite_are_not_stored(
    tmp_path: Path, make_teacher: Make, samples: Samples
) -> None:
    with pytest.raises(TeacherError, match="teacher own gave an image embedding that is not fin"):
        write_store(tmp_path / "s", make_teacher(offset=float("nan")), samples, "data")
    assert set(files(tmp_path / "s")) == {"store.json"}


def test_the_digest_is_of_contents_in_their_order(tmp_path: Path, make_samples: Make) -> None:
    samples = make_samples(3)
    digest = samples_digest(samples)
    assert digest == samples_digest(make_samples(3))
    assert len(digest) == 16
    path = tmp_path / "picture"
    path.write_bytes(samples.pictures[0])
    same = samples._replace(pictures=[path, *samples.pictures[1:]])
    assert samples_digest(same) == digest
    array = np.zeros((2, 3, 3), np.uint8)
    others = [
        samples._replace(pictures=list(samples.pictures)[::-1]),
        samples._replace(pictures=list(samples.pictures)[:-1]),
        samples._replace(texts=list(samples.texts)[::-1]),
        samples._replace(pictures=[array]),
        samples._replace(pictures=[array.reshape(3, 2, 3)]),
        samples._replace(pictures=[array.view(np.int8)]),
    ]
    assert len({digest, *map(samples_digest, others)}) == 7


def test_a_full_disk_leaves_one_line_and_no_half_file(
    tmp_path: Path, make_teacher: Make, make_samples: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    teacher, samples = make_teacher(), make_samples()
    monkeypatch.setattr("distill.store.save_file", full)
    with pytest.raises(StoreError, match=r"cannot be written \(.*No space.*distill\.store"):
        write_store(tmp_path / "s", teacher, samples, samples_digest(samples))
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["store.json"]
