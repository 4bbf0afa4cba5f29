from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from keynet.cache.key_rows import CodeIndexError, check_digest, entry_number, key_rows
from keynet.types import Key, KeySpace

SPACE = KeySpace("toy", 1, 4, 64, "f00d")
KEY = Key(
    SPACE,
    np.array([0.6, 0, 0.8, 0], np.float32),
    np.arange(8, dtype=np.uint8),
    None,
    "0123456789abcdef" * 2,
)


def test_keys_as_arrays() -> None:
    rows = key_rows(SPACE, [KEY, replace(KEY, vector=-KEY.vector)])
    assert rows.codes.tolist() == [list(range(8))] * 2
    assert np.array_equal(rows.vectors, np.stack([KEY.vector, -KEY.vector]))
    assert rows.scopes == [KEY.scope_digest] * 2
    assert key_rows(SPACE, []).codes.shape == (0, 8)
    # A space that was loaded a second time is the same.
    assert key_rows(SPACE, [replace(KEY, space=replace(SPACE))]).codes.shape == (1, 8)


VECTOR = KEY.vector


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": np.zeros(32, np.uint8)}, r"key has a code uint8 \[32\]; expected uint8 \[8\]"),
        ({"code": np.zeros(8, np.int8)}, r"key has a code int8 \[8\]; expected uint8 \[8\]"),
        ({"code": np.zeros((1, 8), np.uint8)}, r"key has a code uint8 \[1, 8\]"),
        ({"code": b"12345678"}, "key has a code of bytes; expected NumPy's"),
        ({"vector": VECTOR[:3]}, r"key has a vector float32 \[3\]; expected float32 \[4\]"),
        ({"vector": VECTOR.astype(np.float64)}, r"vector float64 \[4\]; expected float32"),
        ({"vector": VECTOR.astype(np.float16)}, r"vector float16 \[4\]; expected float32"),
        ({"vector": 0 * VECTOR}, "vector of norm 0; expected 1"),
        ({"vector": VECTOR * np.nan}, "vector of norm nan; expected 1"),
        ({"vector": np.array([np.inf, 0, 0, 0], np.float32)}, "vector of norm inf"),
        ({"vector": 1.01 * VECTOR}, "vector of norm 1.01; expected 1"),
        ({"scope_digest": "tenant"}, "scope digest is 'tenant'; expected 32 characters of hex"),
        ({"scope_digest": KEY.scope_digest.upper()}, "scope digest is"),
        ({"scope_digest": None}, "scope digest is 'None'"),
    ],
)
def test_keys_that_are_none(change: dict, message: str) -> None:
    with pytest.raises(CodeIndexError, match=message) as caught:
        key_rows(SPACE, [replace(KEY, **change)])
    assert "\n" not in str(caught.value)


def test_which_key_of_many() -> None:
    with pytest.raises(CodeIndexError, match=r"key 1 has a vector of norm 0\.5"):
        key_rows(SPACE, [KEY, replace(KEY, vector=VECTOR / 2)])
    with pytest.raises(CodeIndexError, match="key 1 is str; expected a Key"):
        key_rows(SPACE, [KEY, "kn1:"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "other", [{"fingerprint": "beef"}, {"version": 2}, {"bits": 128}, {"name": "other"}]
)
def test_keys_of_another_space(other: dict) -> None:
    with pytest.raises(ValueError, match="keys of two key spaces cannot be compared"):
        key_rows(SPACE, [replace(KEY, space=replace(SPACE, **other))])


def test_widths_of_one_name() -> None:
    wide = replace(KEY, space=replace(SPACE, bits=128, dim=5))
    with pytest.raises(
        CodeIndexError, match=r"128 bits and 5 dimensions; expected .* 64 bits and 4"
    ):
        key_rows(SPACE, [wide])


def test_rounding_is_no_error() -> None:
    rough = (1.0005 * VECTOR).astype(np.float32)
    assert len(key_rows(SPACE, [replace(KEY, vector=rough)]).codes) == 1


def test_entries() -> None:
    assert entry_number(np.int32(7)) == 7 and type(entry_number(np.int32(7))) is int
    assert entry_number(2**63 - 1) == 2**63 - 1
    for entry in (-1, 2**63):
        with pytest.raises(CodeIndexError, match=f"entry is {entry}; expected 0 to"):
            entry_number(entry)
    for entry in ("7", 7.0, None):
        with pytest.raises(CodeIndexError, match="expected a whole number"):
            entry_number(entry)  # type: ignore[arg-type]


def test_digests() -> None:
    check_digest(KEY.scope_digest)
    for digest in ("", "0" * 31, "0" * 33, "g" * 32, "0" * 32 + "\n"):
        with pytest.raises(CodeIndexError, match="scope digest is"):
            check_digest(digest)
