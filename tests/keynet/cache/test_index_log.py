from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.index_log import (
    FORMAT,
    HEADER,
    REMOVE,
    SET,
    DamagedError,
    IndexFilesError,
    any_sound,
    first_damaged,
    header,
    last_settings,
    read_log,
    record_type,
    seal,
    take,
)
from keynet.types import KeySpace

SPACE = KeySpace("toy", 1, 5, 64, "f00d")


def made(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    records = np.zeros(count, record_type(SPACE))
    records["entry"], records["operation"] = np.arange(count), SET
    records["code"] = random.integers(0, 256, (count, 8))
    records["vector"] = random.standard_normal((count, 5))
    seal(records)
    return records


def test_a_record_is_what_the_format_says() -> None:
    kind = record_type(SPACE)
    assert kind.itemsize == 8 + 16 + 4 + 8 + 2 * 5 + 4
    assert [kind.fields[name][1] for name in kind.names] == [0, 8, 24, 28, 36, 46]


def test_one_pass_checks_all_records() -> None:
    records = made(50)
    assert first_damaged(records) is None
    assert first_damaged(made(0)) is None
    # Records stand for themselves: any order, any part of them is sound.
    assert first_damaged(records[::-1].copy()) is None
    assert first_damaged(records[7:9]) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 49), st.integers(0, 49), st.integers(1, 255))
def test_the_first_damaged_record_is_found(record: int, byte: int, flip: int) -> None:
    records = made(50)
    raw = records.view(np.uint8).reshape(50, -1)
    raw[record, byte] ^= flip
    if record < 49:
        raw[record + 1, 0] ^= 1
    assert first_damaged(records) == record
    assert any_sound(records[record:]) == (record < 48)


def test_zeros_are_no_record() -> None:
    records = np.zeros(3, record_type(SPACE))
    assert first_damaged(records) == 0
    assert not any_sound(records)


STEPS = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=40)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 40))
def test_the_last_setting_of_each_entry_counts(steps: list[tuple[int, bool]], cut: int) -> None:
    records = made(len(steps))
    records["entry"] = [entry for entry, _ in steps]
    records["operation"] = [SET if setting else REMOVE for _, setting in steps]
    model: dict[int, int] = {}
    for place, (entry, setting) in enumerate(steps):
        model.pop(entry, None)
        if setting:
            model[entry] = place
    parts = [records[:cut], records[cut:]]
    places = last_settings(parts)
    assert places.tolist() == sorted(model.values())
    assert np.array_equal(take(parts, places), records[places])
    assert np.array_equal(take(parts, places[::-1]), records[places[::-1]])


def write(path: Path, head: bytes, records: np.ndarray, loose: bytes = b"") -> Path:
    path.write_bytes(head + records.tobytes() + loose)
    return path


def test_a_log_comes_back(tmp_path: Path) -> None:
    records = made(20)
    path = write(tmp_path / "a", header(SPACE, "beef", 7), records, b"xyz")
    found = read_log(path, SPACE)
    assert np.array_equal(found.records, records)
    assert found.loose == 3
    assert found[2:] == ("beef", "7.journal", None)
    empty = read_log(write(tmp_path / "b", header(SPACE, "beef", 7), made(0)), SPACE)
    assert len(empty.records) == 0 and empty.loose == 0
    found = read_log(write(tmp_path / "c", header(SPACE, "beef", 7, 20), records), SPACE)
    assert np.array_equal(found.records, records)
    assert found[2:] == ("beef", "7.snapshot", None)


def test_a_journal_tells_the_length_of_the_one_before(tmp_path: Path) -> None:
    head = header(SPACE, "beef", 7, before=12)
    assert read_log(write(tmp_path / "a", head, made(3)), SPACE).before == 12
    content = json.loads(head[:-4])
    del content["before"]  # as earlier versions wrote it
    padded = json.dumps(content).encode().ljust(HEADER - 4)
    head = padded + zlib.crc32(padded).to_bytes(4, "little")
    assert read_log(write(tmp_path / "a", head, made(3)), SPACE).before is None


@pytest.mark.parametrize(("count", "loose"), [(19, b""), (21, b""), (20, b"x")])
def test_a_snapshot_knows_its_length(tmp_path: Path, count: int, loose: bytes) -> None:
    path = write(tmp_path / "a", header(SPACE, "beef", 7, 20), made(count), loose)
    with pytest.raises(DamagedError, match="expected 20 records of 50 bytes"):
        read_log(path, SPACE)


@pytest.mark.parametrize("length", [0, 1, HEADER - 1])
def test_a_header_that_is_cut(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(header(SPACE, "beef", 7)[:length])
    with pytest.raises(
        DamagedError, match="has a damaged header; restore the folder from a copy, or rem"
    ):
        read_log(path, SPACE)


@pytest.mark.parametrize("byte", [0, 20, HEADER - 5, HEADER - 1])
def test_a_header_that_is_damaged(tmp_path: Path, byte: int) -> None:
    head = bytearray(header(SPACE, "beef", 7))
    head[byte] ^= 4
    with pytest.raises(
        DamagedError, match="has a damaged header; restore the folder from a copy, or rem"
    ):
        read_log(write(tmp_path / "a", bytes(head), made(1)), SPACE)


def test_another_key_space_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", header(SPACE, "beef", 7), made(3))
    with pytest.raises(
        IndexFilesError, match=r"keys of toy v1 \(f00d, 64 bits, 5 dimensions\), the"
    ):
        read_log(path, replace(SPACE, fingerprint="beef"))
    with pytest.raises(IndexFilesError, match=r"128 bits, 5 dimensions\); choose another folder"):
        read_log(path, replace(SPACE, bits=128))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    content = json.loads(header(SPACE, "beef", 7)[:-4])
    content |= {"format": FORMAT + 1, "key_space": {"name": "of another shape"}}
    padded = json.dumps(content).encode().ljust(HEADER - 4)
    head = padded + zlib.crc32(padded).to_bytes(4, "little")
    with pytest.raises(IndexFilesError, match="format 2, this version reads 1"):
        read_log(write(tmp_path / "a", head, made(1)), SPACE)


def test_a_name_that_does_not_fit() -> None:
    with pytest.raises(IndexFilesError, match="name of key space has 2000 characters"):
        header(replace(SPACE, name="n" * 2000), "beef", 7)
