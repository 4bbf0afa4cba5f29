"""Writes a chat log from the requests of a data source, with lines broken in every way."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keynet.types import Request

Line = dict[str, Any]

LOW_DETAIL_TOKENS = 85  # what OpenAI counts for a picture in low detail
CHARACTERS_A_TOKEN = 4
HUGE = 100_000_000  # bytes of a picture that is too large


def write_log(
    requests: Sequence[Request], path: Path, *, lines: int, broken: float, repeats: float, seed: int
) -> dict[str, list[int]]:
    """Write a chat log and return the numbers of its broken lines, by the reason they are to have.

    All that is asked about one picture (tag ``picture``) is a conversation; conversations are drawn
    at random and their lines are shuffled. Every second picture is a file in the folder
    ``STEM_pictures`` beside the log, the others are data URLs. Groups are not written.

    Args:
        requests: With responses.
        path: The log; one that is there is replaced.
        lines: Lines in all.
        broken: Share of the lines that are broken, in turn in each way.
        repeats: Share of the lines that repeat an earlier one verbatim, in a conversation of its
            own.
        seed: Of all that is drawn.

    Raises:
        ValueError: When the requests do not suffice.
    """
    rng = np.random.default_rng(seed)
    num_broken, num_repeats = round(lines * broken), round(lines * repeats)
    fresh = lines - num_broken - num_repeats
    if fresh < 1 or not requests:
        raise ValueError(f"lines={lines}: broken={broken} and repeats={repeats} leave none")
    if fresh > len(requests):
        raise ValueError(f"lines={lines}: the data has {len(requests):,} requests; ask for fewer")
    pictures = path.with_name(f"{path.stem}_pictures")
    pictures.mkdir(parents=True, exist_ok=True)
    drawn = [requests[n] for n in _conversations(requests, rng)[:fresh]]
    whole = [_line(drawn[n], pictures) for n in rng.permutation(fresh)]
    for number in rng.integers(len(whole), size=num_repeats).tolist():
        whole.insert(
            int(rng.integers(number + 1, len(whole) + 1)),
            {k: v for k, v in whole[number].items() if k != "conversation"},
        )
    reasons = list(BROKEN)
    at = set(rng.permutation(lines)[:num_broken].tolist())
    numbers: dict[str, list[int]] = defaultdict(list)
    rest = iter(whole)
    with path.open("wb") as file:
        for number in range(lines):
            if number in at:
                reason = reasons[sum(map(len, numbers.values())) % len(reasons)]
                source = _line(drawn[int(rng.integers(fresh))], pictures)
                content = BROKEN[reason](source | {"id": f"request-{number + 1}"}, pictures)
                numbers[reason].append(number + 1)
            else:
                content = _json({"id": f"request-{number + 1}"} | next(rest))
            file.write(content + b"\n")
    return dict(numbers)


def _conversations(requests: Sequence[Request], rng: np.random.Generator) -> list[int]:
    """Return the requests picture by picture, pictures in random order."""
    members: dict[str, list[int]] = defaultdict(list)
    for number, request in enumerate(requests):
        members[request.tags.get("picture", f"none {number}")].append(number)
    units = list(members.values())
    return [number for unit in rng.permutation(len(units)) for number in units[unit]]


def _line(request: Request, pictures: Path) -> Line:
    parts: list[Line] = []
    if request.text is not None:
        parts.append({"type": "text", "text": request.text})
    if request.image is not None:
        parts.append({"type": "image_url", "image_url": {"url": _url(request.image, pictures)}})
    prompt = len(request.text or "") // CHARACTERS_A_TOKEN
    prompt += LOW_DETAIL_TOKENS * (request.image is not None)
    answered = max(1, len(str(request.response)) // CHARACTERS_A_TOKEN)
    line: Line = {
        "model": "written-log",
        "temperature": 0,
        "messages": [{"role": "user", "content": parts}],
        "response": request.response,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": answered,
            "total_tokens": prompt + answered,
        },
    }
    if "picture" in request.tags:
        line["conversation"] = request.tags["picture"]
    return line


def _url(image: bytes | str | Path | np.ndarray, pictures: Path) -> str:
    content = _bytes(image)
    digest = hashlib.sha256(content).hexdigest()[:16]
    with Image.open(io.BytesIO(content)) as opened:
        kind = str(opened.format).lower()
    if int(digest, 16) % 2:
        return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    file = pictures / f"{digest}.{kind}"
    if not file.exists():
        file.write_bytes(content)
    return f"{pictures.name}/{file.name}"


def _bytes(image: bytes | str | Path | np.ndarray) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, (str, Path)):
        return Path(image).read_bytes()
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def _json(line: Any) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode()


def _asking(*urls: str) -> Callable[[Line, Path], bytes]:
    """Return what asks about other pictures."""

    def made(line: Line, _: Path) -> bytes:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return _json(line | {"messages": [{"role": "user", "content": parts}]})

    return made


def _huge(line: Line, pictures: Path) -> bytes:
    file = pictures / "huge.png"
    with file.open("wb") as opened:
        opened.truncate(HUGE)  # of zeros, which take no room on the disk
    return _asking(f"{pictures.name}/{file.name}")(line, pictures)


def _with(**changes: Any) -> Callable[[Line, Path], bytes]:
    return lambda line, _: _json(line | changes)


BROKEN: dict[str, Callable[[Line, Path], bytes]] = {  # by the reason that data.chat_log gives
    "broken JSON": lambda line, _: _json(line)[:-9],
    "not UTF-8": lambda line, _: '{"messages": "größer"}'.encode("latin-1"),
    "no JSON object": lambda line, _: _json([line["response"]]),
    "empty line": lambda line, _: b"",
    "no messages": _with(messages=[]),
    "no user message": _with(messages=[{"role": "system", "content": "Be brief."}]),
    "no text and no picture": _with(messages=[{"role": "user", "content": ""}]),
    "no response": _with(response=None),
    "response is empty": _with(response=" "),
    "response is an error": _with(response={"error": {"code": 429, "message": "Slow down."}}),
    "response without a message": _with(response={"choices": []}),
    "unknown field 'tennant', did you mean 'tenant'": _with(tennant="acme"),
    "several pictures in one message": _asking("one.png", "other.png"),
    "picture that cannot be decoded": _asking("data:image/png;base64,aGVsbG8="),
    "data URL that cannot be decoded": _asking("data:image/png;base64,%%%"),
    "picture file missing": _asking("nowhere.png"),
    "picture file outside the folder": _asking("../outside.png"),
    "picture too large": _huge,
    "url not allowed": _asking("http://pictures.invalid/dead.png"),
}
