"""Keys and entries as an index takes them: checked, and as arrays."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence, Sized
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from keynet.cache.scope import DIGEST_CHARACTERS
from keynet.types import CODE_BITS, Key, KeySpace

TOLERANCE = 1e-3  # of a norm of 1; a key of a half-precision model is off by 1e-4


class CodeIndexError(ValueError):
    """Something that an index cannot take; the message says what was expected."""


class KeyRows(NamedTuple):
    """Keys as arrays."""

    codes: NDArray[np.uint8]  # [n, K/8]
    vectors: NDArray[np.float32]  # [n, D], unit norm
    scopes: list[str]


def check_space(space: KeySpace) -> None:
    """Raise CodeIndexError unless a key space has widths that codes and vectors can have."""
    whole = all(isinstance(width, int) for width in (space.bits, space.dim))
    if not whole or space.bits not in CODE_BITS or space.dim < 1:
        raise CodeIndexError(
            f"key space has {space.bits} bits and {space.dim} dimensions; "
            f"expected bits one of {CODE_BITS}, and 1 dimension or more, as int"
        )


def check_sized(name: str, value: Any) -> None:
    """Raise CodeIndexError unless an argument holds several, which can be counted."""
    if not isinstance(value, Sized):
        raise CodeIndexError(f"{name} is {type(value).__name__}; expected a list of {name}")


def whole_number(name: str, value: SupportsIndex, least: int, most: int | None = None) -> int:
    """Return a setting as an int.

    Raises:
        CodeIndexError: It is no whole number, or not in the range.
    """
    range_ = f"at least {least}" if most is None else f"{least} to {most}, or None for any"
    try:
        number = operator.index(value)
    except TypeError as error:
        raise CodeIndexError(f"{name}={value!r}: expected a whole number, {range_}") from error
    if number < least or (most is not None and number > most):
        raise CodeIndexError(f"{name}={number}: expected {range_}")
    return number


def key_rows(space: KeySpace, keys: Sequence[Key]) -> KeyRows:
    """Return keys as arrays.

    Raises:
        ValueError: A key is of another key space.
        CodeIndexError: A key has a code or vector of another width or type, a vector that is not
            of unit norm (zero, NaN), or a scope digest that is none.
    """
    check_sized("keys", keys)
    for at, key in enumerate(keys):
        _check(space, key, f"key {at}" if len(keys) > 1 else "key")
    codes = np.array([key.code for key in keys], np.uint8).reshape(len(keys), space.bits // 8)
    vectors = np.array([key.vector for key in keys], np.float32).reshape(len(keys), space.dim)
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    sound = np.abs(norms - 1) <= TOLERANCE  # false for NaN
    if not sound.all():
        at = int(sound.argmin())
        raise CodeIndexError(
            f"key {at} has a vector of norm {norms[at]:.4g}; expected 1, as load_key_model makes it"
        )
    return KeyRows(codes, vectors, [key.scope_digest for key in keys])


def entry_numbers(entries: Sequence[SupportsIndex], keys: Sequence[Key]) -> list[int]:
    """Return entries as ints.

    Raises:
        CodeIndexError: One is none, or there are not as many keys.
    """
    check_sized("entries", entries)
    check_sized("keys", keys)
    if len(entries) != len(keys):
        raise CodeIndexError(f"{len(entries)} entries and {len(keys)} keys; give one for each")
    return [entry_number(entry) for entry in entries]


def entry_number(entry: SupportsIndex) -> int:
    """Return an entry as an int.

    Raises:
        CodeIndexError: It is no whole number from 0 to 2^63 - 1.
    """
    try:
        number = operator.index(entry)
    except TypeError as error:
        raise CodeIndexError(f"entry is {entry!r}; expected a whole number") from error
    if not 0 <= number < 2**63:
        raise CodeIndexError(f"entry is {number}; expected 0 to 2^63 - 1")
    return number


def check_digest(digest: str) -> None:
    """Raise CodeIndexError unless a scope digest is one."""
    if not isinstance(digest, str) or not re.fullmatch(f"[0-9a-f]{{{DIGEST_CHARACTERS}}}", digest):
        raise CodeIndexError(
            f"scope digest is {str(digest)[:60]!r}; expected {DIGEST_CHARACTERS} characters of "
            "hex, from scope_digest"
        )


def check_digests(scopes: Iterable[str]) -> list[str]:
    """Return digests of scopes, each once.

    Raises:
        CodeIndexError: One is none, or they are not several.
    """
    if isinstance(scopes, str) or not isinstance(scopes, Iterable):
        raise CodeIndexError(f"scopes={scopes!r}: expected several digests; give [{scopes!r}]")
    digests = list(scopes)
    for digest in digests:
        check_digest(digest)
    return list(dict.fromkeys(digests))


def _check(space: KeySpace, key: Key, name: str) -> None:
    if not isinstance(key, Key):
        raise CodeIndexError(f"{name} is {type(key).__name__}; expected a Key")
    if key.space is not space:
        if (key.space.bits, key.space.dim) != (space.bits, space.dim):
            raise CodeIndexError(
                f"keys of two key spaces cannot be compared: {name} is of {key.space.name} with "
                f"{key.space.bits} bits and {key.space.dim} dimensions; expected {space.name} with "
                f"{space.bits} bits and {space.dim} dimensions"
            )
        space.require_same(key.space)
    for what, array, kind, width in (
        ("code", key.code, np.uint8, space.bits // 8),
        ("vector", key.vector, np.float32, space.dim),
    ):
        if not isinstance(array, np.ndarray):
            raise CodeIndexError(f"{name} has a {what} of {type(array).__name__}; expected NumPy's")
        if array.dtype != kind or array.shape != (width,):
            raise CodeIndexError(
                f"{name} has a {what} {array.dtype} {list(array.shape)}; "
                f"expected {np.dtype(kind)} [{width}]"
            )
    check_digest(key.scope_digest)
