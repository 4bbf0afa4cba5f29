"""Pairs of requests that a user labels as equivalent or not, as JSON lines."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from pathlib import Path

from data.json_objects import unique_keys
from data.log_groups import Pair, Verdict
from keynet.types import Request


def read_pairs(path: Path, requests: Sequence[Request]) -> list[Verdict]:
    """Return the pairs that a user labelled; ``"same": null`` is not labelled yet.

    Args:
        path: Lines ``{"a": ID, "b": ID, "same": true or false}``.
        requests: With the tag ``id``.

    Raises:
        ValueError: For a line that is no pair of two requests of the log.
    """
    number_of: dict[str, int] = {}
    several = set()
    for number, request in enumerate(requests):
        several |= {request.tags["id"]} & number_of.keys()
        number_of.setdefault(request.tags["id"], number)
    verdicts = []
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    for place, line in enumerate(lines, start=1):
        try:
            pair = json.loads(line.decode("utf-8"), object_pairs_hook=unique_keys)
            a, b, same = str(pair["a"]), str(pair["b"]), pair["same"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f'{path}, line {place}: expected {{"a": ID, "b": ID, "same": true or false}}'
            ) from error
        for name in (a, b):
            if name not in number_of or name in several:
                what = "several requests have" if name in several else "no usable line has"
                raise ValueError(
                    f"{path}, line {place}: {what} the id {name!r}; give each line its own, or none"
                )
        if same is None:
            continue
        if not isinstance(same, bool):
            raise ValueError(f"{path}, line {place}: same={same!r}, expected true or false")
        verdicts.append((number_of[a], number_of[b], same))
    return verdicts


def write_pairs(pairs: Sequence[Pair], requests: Sequence[Request], path: Path) -> None:
    """Write pairs in doubt to be labelled, for ``read_pairs``.

    ``{"a": ID, "b": ID, "same": null, "a_text": TEXT, "b_text": TEXT, "answer": TEXT}``; a label
    counts for all requests with these two texts and this answer.
    """
    with path.open("w", encoding="utf-8") as file:
        for pair in pairs:
            a, b = (requests[number] for number in pair)
            line = {
                "a": a.tags["id"], "b": b.tags["id"], "same": None,
                "a_text": a.text, "b_text": b.text, "answer": a.response,
            }  # fmt: skip
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
