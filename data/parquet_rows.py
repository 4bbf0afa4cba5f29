"""Rows of Parquet files, their columns checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

ROWS = 64  # read at once
KINDS = {
    "picture": "pictures, expected {bytes, path} or bytes",
    "text": "texts, expected strings",
    "texts": "captions, expected texts or lists of texts",
}


class Column(NamedTuple):
    """A column: its name, the option that gives it, and what it must hold."""

    name: str
    option: str
    kind: Literal["picture", "text", "texts"]


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names of a file's columns; raises as ``read_rows``."""
    with _opened(path) as file:
        return tuple(file.schema_arrow.names)


def described_columns(path: Path) -> str:
    """Return the names and types of a file's columns for a message."""
    with _opened(path) as file:
        return _described(file.schema_arrow)


def read_rows(path: Path, columns: Sequence[Column]) -> Iterator[tuple[Any, ...]]:
    """Return the values of each row, in the order of the columns; a few rows are in memory at once.

    Raises:
        ModuleNotFoundError: Without pyarrow.
        ValueError: When it is no Parquet file, is damaged, has no rows, a text that is not UTF-8
            or no such columns.
    """
    with _opened(path) as file:
        schema = file.schema_arrow
        for name, option, kind in columns:
            if schema.names.count(name) != 1:
                raise ValueError(f"{path} has no column {name!r}: {option}; {_described(schema)}")
            if not _is(kind, schema.field(name).type):
                raise ValueError(
                    f"{path}: the column {name!r} ({option}) holds no {KINDS[kind]}; "
                    f"{_described(schema)}"
                )
        if file.metadata.num_rows == 0:
            raise ValueError(f"{path} has no rows")
        names = [column.name for column in columns]
        before = 0
        for batch in file.iter_batches(ROWS, columns=names, use_threads=False):
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} has a text that is not UTF-8 ({error.reason}) in the rows "
                    f"{before + 1:,} to {before + len(batch):,}; mend it"
                ) from error
            before += len(batch)
            for row in rows:
                yield tuple(row[name] for name in names)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Parquet files are read by pyarrow; install it with: "
            "pip install 'keynet-cache[parquet]'"
        ) from error
    try:
        with ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is no Parquet file, or is damaged ({reason})") from error


def _described(schema: Any) -> str:
    return "it has " + ", ".join(f"{field.name} ({field.type})" for field in schema)


def _is(kind: str, of: Any) -> bool:
    from pyarrow import types

    if kind == "picture":
        if types.is_struct(of):
            index = of.get_field_index("bytes")
            return index >= 0 and _is(kind, of.field(index).type)
        return types.is_binary(of) or types.is_large_binary(of) or types.is_binary_view(of)
    if types.is_dictionary(of):
        return _is(kind, of.value_type)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if kind == "texts" and any(is_list(of) for is_list in lists):
        return _is("text", of.value_type)
    return types.is_string(of) or types.is_large_string(of) or types.is_string_view(of)
