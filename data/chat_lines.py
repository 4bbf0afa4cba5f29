"""One line of a chat log as a request: what was asked, under which scope, and the answer.

The text is that of the last user message, its parts joined by line breaks, and the picture the one
in it. All else that bears on the answer goes into the scope as ``keynet.request_scope`` takes it:

* ``system``: the text of the system messages at the beginning, joined by line breaks, or None.
* ``turns``: the messages up to the last user message, each ``{"role", "content", ...}`` with all
  of its fields. A content of texts alone is their joined text; one with pictures is the list of
  its parts, a picture as ``{"sha256": ...}`` of its bytes (bytes in their place are the same).
* ``sampling``: the fields of ``SAMPLING`` that are given and not null.
* ``since``: what follows the last user message (calls of tools and their results), if anything.
* ``detail``: of the picture, if it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from data.broken_lines import BrokenError
from data.json_objects import unique_keys
from keynet.cache.request_scope import SHARED, request_scope
from keynet.cache.scope import scope_digest

# Of chat completions, as OpenAI, vLLM and others take them: what changes the answer.
SAMPLING = (
    "temperature", "top_p", "top_k", "top_a", "min_p", "max_tokens", "max_completion_tokens",
    "min_tokens", "seed", "stop", "n", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice",
    "parallel_tool_calls", "functions", "function_call", "response_format", "reasoning_effort",
    "verbosity", "modalities", "audio", "prediction", "web_search_options",
)  # fmt: skip
SCOPED = ("tenant", "scene", "device", "user")
# Read, or known to change no answer; others are counted as not read.
KNOWN = frozenset(
    (
        "messages", "model", "response", "id", "conversation", "group", "created", "usage", "error",
        "stream", "stream_options", "store", "metadata", *SAMPLING, *SCOPED,
    )
)  # fmt: skip
# A misspelling of these would change unnoticed what was asked, who shares an answer, or a split.
TELLING = ("messages", "model", "response", "conversation", "group", *SAMPLING, *SCOPED)
CLOSE = 0.8  # of difflib's ratio: one letter of five is another
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # an escape of a half character, alone or not
MAX_TEXT_BYTES = 1_000_000  # keynet.preprocess refuses more

Load = Callable[[str], tuple[str, Path]]  # a picture's URL to its digest and its file


@dataclass(frozen=True)
class ChatLine:
    """What one line says.

    Args:
        text, image: Of the request; one of them may be None.
        picture: Digest of the image.
        scope: As ``request_scope`` returns it.
        scope_digest: Of the scope and the modalities present, as serving makes it.
        seen: Digests of all pictures, those of earlier turns too.
        response: The text of the answer.
        id, conversation, group: Names, where given.
        tokens: Of prompt and answer together, where ``usage`` says so.
        unread: Names of fields that are not read.
    """

    text: str | None
    image: Path | None
    picture: str | None
    scope: Mapping[str, Any]
    scope_digest: str
    seen: frozenset[str]
    response: str
    id: str | None
    conversation: str | None
    group: str | None
    tokens: int | None
    unread: tuple[str, ...]


def read_line(line: bytes, load: Load, *, model: str | None, shared: Collection[str]) -> ChatLine:
    """Return what a line says.

    Args:
        line: One JSON object.
        load: Reads pictures.
        model: Of lines that name none.
        shared: Fields of ``SCOPED`` that are left out of the scope.

    Raises:
        BrokenError: It cannot be used; the error says why.
    """
    body = _parsed(line)
    _check_names(body, shared)
    before, asked, since = _parted(body)
    seen: dict[str, Path] = {}

    def picture(url: str) -> str:
        digest, path = load(url)
        seen[digest] = path
        return digest

    parts = _parts(asked)
    others = [p["type"] for p in parts if p["type"] not in ("text", "image_url")]
    if others:
        raise BrokenError("unsupported part of a message", str(others[0])[:40])
    text = "\n".join(p["text"] for p in parts if p["type"] == "text") or None
    images = [p for p in parts if p["type"] == "image_url"]
    if len(images) > 1:
        raise BrokenError("several pictures in one message")
    if images and text is not None and not text.strip():
        text = None
    if text is None and not images:
        raise BrokenError("no text and no picture")
    _check_text(text)
    response = _answer(body)  # before pictures are asked for
    digest = picture(images[0]["url"]) if images else None
    more = {"detail": images[0]["detail"]} if images and "detail" in images[0] else {}
    system = []
    while before and before[0]["role"] in ("system", "developer") and _is_text(before[0]):
        system.append(_joined(_parts(before.pop(0))))
    if since:
        more["since"] = [_turn(message, picture) for message in since]
    named = {name: _name(body, name) for name in SCOPED}
    answered_by = _name(body, "model") or model
    if answered_by is None:
        raise BrokenError("no model", "name the one that answered: data.source.model=NAME")
    fields = {n: SHARED if n in shared or v is None else v for n, v in named.items()}
    try:
        scope = request_scope(
            model=answered_by,
            sampling={n: body[n] for n in SAMPLING if body.get(n) is not None},
            system="\n".join(system) if system else None,
            turns=[_turn(message, picture) for message in before],
            tenant=fields["tenant"],
            scene=fields["scene"],
            device=fields["device"],
            user=fields["user"],
            **more,
        )
        identity = scope_digest(scope, bool(images), text is not None)
    except RecursionError as error:
        raise BrokenError("scope that cannot be compared", "nested too deep") from error
    except BrokenError:
        raise
    except ValueError as error:
        raise BrokenError("scope that cannot be compared", str(error)) from error
    return ChatLine(
        text=text,
        image=None if digest is None else seen[digest],
        picture=digest,
        scope=scope,
        scope_digest=identity,
        seen=frozenset(seen),
        response=response,
        id=_name(body, "id"),
        conversation=_name(body, "conversation"),
        group=_name(body, "group"),
        tokens=_tokens(body),
        unread=tuple(sorted(body.keys() - KNOWN)),
    )


def _parsed(line: bytes) -> dict[str, Any]:
    if not line.strip():
        raise BrokenError("empty line")
    try:
        body = json.loads(
            line.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=unique_keys
        )
        if SURROGATE.search(line):
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise BrokenError("not UTF-8", f"byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise BrokenError("text is not Unicode", "a lone surrogate") from error
    except (ValueError, RecursionError) as error:
        raise BrokenError("broken JSON", str(error)[:80]) from error
    if not isinstance(body, dict):
        raise BrokenError("no JSON object", type(body).__name__)
    return body


def _check_names(body: Mapping[str, Any], shared: Collection[str]) -> None:
    """Raise BrokenError for a field that is likely one that the line lacks, misspelt."""
    given = {name for name, value in body.items() if value is not None} | {*shared}
    messages = body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        given |= {"response"} if messages[-1].get("role") == "assistant" else set()
    for name in sorted(body.keys() - KNOWN):
        meant = [one for one in _alike(name) if one not in given]
        if meant:
            raise BrokenError(f"unknown field {name[:40]!r}, did you mean {meant[0]!r}")


@lru_cache(maxsize=1024)
def _alike(name: str) -> tuple[str, ...]:
    """Return the fields that a name may stand for, the likeliest first.

    Beside misspellings those are names such as ``tenant_id`` of what is in the scope.
    """
    name = name.lower()
    ratio = {one: SequenceMatcher(None, one, name).ratio() for one in TELLING}
    alike = [
        one for one in TELLING if ratio[one] >= CLOSE or (one in SCOPED and name.startswith(one))
    ]
    return tuple(sorted(alike, key=lambda one: -ratio[one]))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _parted(body: Mapping[str, Any]) -> tuple[list[Any], Mapping[str, Any], list[Any]]:
    """Return the messages before the last user message, that message, and those after it."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BrokenError("no messages")
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise BrokenError("message without a role")
    if _holds_answer(body):
        messages = messages[:-1]
    at = max((n for n, m in enumerate(messages) if m["role"] == "user"), default=None)
    if at is None:
        raise BrokenError("no user message")
    return messages[:at], messages[at], messages[at + 1 :]


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content as parts: ``text`` with a text, ``image_url`` with a url, and others."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise BrokenError("content that is neither text nor parts", type(content).__name__)
    return [_part(part) for part in content]


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise BrokenError("content that is neither text nor parts", "a part without a type")
    if part["type"] == "text":
        if not isinstance(part.get("text"), str):
            raise BrokenError("content that is neither text nor parts", "a text part without text")
        return {"type": "text", "text": part["text"]}
    if part["type"] == "image_url":
        image = part.get("image_url")
        image = {"url": image} if isinstance(image, str) else image
        if not isinstance(image, dict) or not isinstance(image.get("url"), str):
            raise BrokenError("picture without a url")
        detail = image.get("detail", "auto")
        return {"type": "image_url", "url": image["url"]} | (
            {} if detail == "auto" else {"detail": detail}
        )
    return dict(part)


def _is_text(message: Mapping[str, Any]) -> bool:
    return all(part["type"] == "text" for part in _parts(message))


def _joined(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts)


def _turn(message: Mapping[str, Any], picture: Callable[[str], str]) -> dict[str, Any]:
    """Return a message as the scope holds it."""
    parts = _parts(message)
    content: Any = _joined(parts) if _is_text(message) else []
    if content == []:
        for part in parts:
            if part["type"] == "image_url":
                shown = {"sha256": picture(part["url"])}
                content.append(shown | ({"detail": part["detail"]} if "detail" in part else {}))
            else:
                content.append(part["text"] if part["type"] == "text" else part)
    return {**message, "content": content}


def _holds_answer(body: Mapping[str, Any]) -> bool:
    """Whether the last message is the answer, as in logs for fine-tuning."""
    return body.get("response") is None and body["messages"][-1]["role"] == "assistant"


def _answer(body: Mapping[str, Any]) -> str:
    answer: Any = body["messages"][-1] if _holds_answer(body) else body.get("response")
    if body.get("error") or (isinstance(answer, dict) and answer.get("error")):
        raise BrokenError("response is an error")
    if answer is None:
        raise BrokenError("no response")
    if isinstance(answer, dict) and "choices" in answer:
        choices = answer["choices"]
        first = choices[0] if isinstance(choices, list) and choices else None
        answer = first.get("message") if isinstance(first, dict) else None
        if not isinstance(answer, dict):
            raise BrokenError("response without a message")
    if isinstance(answer, dict):
        answer = "\n".join(p["text"] for p in _parts(answer) if p["type"] == "text")
    if not isinstance(answer, str):
        raise BrokenError("response that is neither text nor a completion", type(answer).__name__)
    if not answer.strip():
        raise BrokenError("response is empty")
    return answer


def _check_text(text: str | None) -> None:
    if text is None:
        return
    if not text.strip():
        raise BrokenError("no text and no picture")
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise BrokenError("text too long", f"over {MAX_TEXT_BYTES:,} bytes")


def _name(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise BrokenError("field of another type", f"{name} is {type(value).__name__}, not a text")


def _tokens(body: Mapping[str, Any]) -> int | None:
    response = body.get("response")
    usage = body.get("usage") or (response.get("usage") if isinstance(response, dict) else None)
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if type(total) is int and total >= 0 else None
