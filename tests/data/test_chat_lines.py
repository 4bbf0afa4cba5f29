from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data.broken_lines import BrokenError
from data.chat_lines import ChatLine, read_line
from keynet import SHARED, request_scope
from keynet.cache.scope import scope_digest

USER = {"role": "user", "content": "What is it?"}
WHOLE = {"model": "vlm", "messages": [USER], "response": "A cat."}


def load(url: str) -> tuple[str, Path]:
    if url == "dead":
        raise BrokenError("url cannot be fetched")
    return f"digest of {url}", Path(url)


def image(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(written: str) -> dict[str, Any]:
    return {"type": "text", "text": written}


def read(line: Any, **changes: Any) -> ChatLine:
    written = line if isinstance(line, bytes) else json.dumps(line).encode()
    return read_line(written, load, **({"model": None, "shared": ()} | changes))


def asking(*parts: Any, **more: Any) -> dict[str, Any]:
    return WHOLE | {"messages": [{"role": "user", "content": list(parts)}]} | more


def test_a_whole_line() -> None:
    line = asking(
        text("What is it?"), image("a.png"),
        id=7, conversation="c", tenant="acme", user="u", temperature=0.5, top_p=None, stop=["\n"],
        usage={"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}, created=1,
        stream=True, latency=3, group="g",
    )  # fmt: skip
    line["messages"] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [image("b.png"), text("Hello")]},
        {"role": "assistant", "content": "Hi"},
        *line["messages"],
    ]
    found = read(line, shared=("user",))
    assert (found.text, found.image, found.picture) == (
        "What is it?", Path("a.png"), "digest of a.png",
    )  # fmt: skip
    assert found.response == "A cat."
    assert (found.id, found.conversation, found.group, found.tokens) == ("7", "c", "g", 6)
    assert found.seen == {"digest of a.png", "digest of b.png"}
    assert found.unread == ("latency",)
    scope = request_scope(
        model="vlm", sampling={"temperature": 0.5, "stop": ["\n"]}, system="Be brief.",
        turns=[
            {"role": "user", "content": [{"sha256": "digest of b.png"}, "Hello"]},
            {"role": "assistant", "content": "Hi"},
        ],
        tenant="acme", scene=SHARED, device=SHARED, user=SHARED,
    )  # fmt: skip
    assert found.scope == scope
    assert found.scope_digest == scope_digest(scope, has_image=True, has_text=True)


def test_bytes_in_serving_and_a_digest_here_are_the_same_scope() -> None:
    import hashlib

    shown = b"picture"
    line = WHOLE | {"messages": [{"role": "user", "content": [image("x")]}, USER]}
    found = read_line(
        json.dumps(line).encode(),
        lambda url: (hashlib.sha256(shown).hexdigest(), Path(url)),
        model=None,
        shared=(),
    )
    served = request_scope(
        model="vlm", sampling={}, system=None, turns=[{"role": "user", "content": [shown]}],
        tenant=SHARED, scene=SHARED, device=SHARED, user=SHARED,
    )  # fmt: skip
    assert found.scope == served


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"}, {"temperature": 1}, {"tools": [{"type": "function"}]}, {"tenant": "a"},
        {"user": "u"}, {"scene": "s"}, {"device": "d"},
        {"messages": [{"role": "system", "content": "Be brief."}, USER]},
        {"messages": [{"role": "assistant", "content": "Hi"}, USER]},
        {"messages": [{"role": "user", "content": [image("a.png")]}, USER]},
        {"messages": [USER, {"role": "tool", "content": "7", "tool_call_id": "x"}]},
    ],
)  # fmt: skip
def test_what_bears_on_the_answer_is_in_the_scope(changed: dict[str, Any]) -> None:
    assert read(WHOLE | changed).scope_digest != read(WHOLE).scope_digest
    assert read(WHOLE | changed).text == "What is it?"


def test_two_ways_to_write_the_same_make_one_scope() -> None:
    said = {"role": "assistant", "content": "Hi"}
    parts = {"role": "assistant", "content": [text("Hi")]}
    one, other = (read(WHOLE | {"messages": [m, USER]}) for m in (said, parts))
    assert one.scope == other.scope
    assert read(WHOLE | {"id": "x", "stream": True, "latency": 3}).scope == read(WHOLE).scope
    assert read(WHOLE | {"user": "u"}, shared=("user",)).scope == read(WHOLE).scope
    detail = [read(asking(image("a", **d))).scope for d in ({}, {"detail": "auto"})]
    assert detail[0] == detail[1] != read(asking(image("a", detail="low"))).scope


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("A cat.", "A cat."),
        ({"choices": [{"message": {"role": "assistant", "content": "A cat."}}]}, "A cat."),
        ({"choices": [{"message": {"content": [text("A"), text("cat.")]}}]}, "A\ncat."),
        ({"role": "assistant", "content": "A cat."}, "A cat."),
    ],
)
def test_responses(response: Any, answer: str) -> None:
    assert read(WHOLE | {"response": response}).response == answer


def test_a_log_for_fine_tuning_ends_with_the_answer() -> None:
    line = {"messages": [USER, {"role": "assistant", "content": "A cat."}]}
    found = read(line, model="vlm")
    assert (found.text, found.response) == ("What is it?", "A cat.")
    assert found.scope == read(WHOLE).scope


def test_parts_and_absent_modalities() -> None:
    assert read(asking(text("a"), "b")).text == "a\nb"
    alone = read(asking(text(" "), image("a.png")))
    assert (alone.text, alone.image) == (None, Path("a.png"))
    assert read(asking(text("a"))).image is None
    assert read(asking({"type": "image_url", "image_url": "a.png"})).picture == "digest of a.png"


def test_tokens_of_a_completion() -> None:
    response = {"choices": [{"message": {"content": "x"}}], "usage": {"total_tokens": 9}}
    assert read(WHOLE | {"response": response}).tokens == 9
    assert read(WHOLE | {"usage": {"total_tokens": "9"}}).tokens is None


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in WHOLE.items() if name not in names}


BROKEN: list[tuple[Any, str]] = [
    (b"", "empty line"),
    (b'{"messages": [', "broken JSON"),
    (b'{"temperature": NaN}', "broken JSON"),
    (b'{"tenant": "a", "tenant": "b"}', "broken JSON"),
    (b'{"user": {"a": 1, "a": 2}}', "broken JSON"),
    (b'{"\\ud800": 1}', "text is not Unicode"),
    (b'{"group": ["\\uDFff"]}', "text is not Unicode"),
    (b"[" * 100_000, "broken JSON"),
    (b'{"n": ' + b"9" * 5000 + b"}", "broken JSON"),
    ('{"text": "größer"}'.encode("latin-1"), "not UTF-8"),
    (json.dumps(WHOLE).encode("utf-16"), "not UTF-8"),
    ([1], "no JSON object"),
    (without("messages"), "no messages"),
    (WHOLE | {"messages": []}, "no messages"),
    (WHOLE | {"messages": ["x"]}, "message without a role"),
    (WHOLE | {"messages": [{"content": "x"}]}, "message without a role"),
    (WHOLE | {"messages": [{"role": "system", "content": "x"}]}, "no user message"),
    (WHOLE | {"messages": [{"role": "user"}]}, "no text and no picture"),
    (WHOLE | {"messages": [{"role": "user", "content": " \n"}]}, "no text and no picture"),
    (WHOLE | {"messages": [{"role": "user", "content": 3}]},
     "content that is neither text nor parts"),
    (asking(3), "content that is neither text nor parts"),
    (asking({"type": "text"}), "content that is neither text nor parts"),
    (asking({"type": "image_url"}), "picture without a url"),
    (asking({"type": "input_audio", "input_audio": {}}), "unsupported part of a message"),
    (asking(image("a"), image("b")), "several pictures in one message"),
    (asking(image("dead")), "url cannot be fetched"),
    (WHOLE | {"messages": [{"role": "user", "content": [image("dead")]}, USER]},
     "url cannot be fetched"),
    (asking(text("\ud800")), "text is not Unicode"),
    (asking(text("x" * 1_000_001)), "text too long"),
    (without("response"), "no response"),
    (without("response") | {"error": {"code": 500}}, "response is an error"),
    (WHOLE | {"response": {"error": {"message": "slow down"}}}, "response is an error"),
    (WHOLE | {"response": {"choices": []}}, "response without a message"),
    (WHOLE | {"response": {"choices": [{}]}}, "response without a message"),
    (WHOLE | {"response": {"choices": "x"}}, "response without a message"),
    (WHOLE | {"response": {"choices": [{"message": {"content": None}}]}}, "response is empty"),
    (WHOLE | {"response": ""}, "response is empty"),
    (WHOLE | {"response": 7}, "response that is neither text nor a completion"),
    (without("model"), "no model"),
    (WHOLE | {"model": ["x"]}, "field of another type"),
    (WHOLE | {"conversation": ""}, "field of another type"),
    (WHOLE | {"id": True}, "field of another type"),
    (json.dumps(WHOLE | {"temperature": 2}).replace("2}", "1e999}").encode(),
     "scope that cannot be compared"),
    (WHOLE | {"messages": [{"role": "system", "content": "\ud800"}, USER]}, "text is not Unicode"),
    (json.dumps(WHOLE | {"tools": 0}).replace("0}", "[" * 400 + "]" * 400 + "}").encode(),
     "scope that cannot be compared"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "reason"), BROKEN, ids=lambda value: str(value)[:50])
def test_a_line_that_cannot_be_used(line: Any, reason: str) -> None:
    with pytest.raises(BrokenError) as error:
        read(line)
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tennant", "tenant"), ("tenent", "tenant"), ("Tenant", "tenant"), ("tenantId", "tenant"),
        ("tenant_id", "tenant"), ("user_name", "user"), ("temprature", "temperature"),
        ("maxtokens", "max_tokens"), ("conversation_id", "conversation"), ("groups", "group"),
    ],
)  # fmt: skip
def test_a_misspelt_field_is_broken(name: str, meant: str) -> None:
    with pytest.raises(BrokenError) as error:
        read(WHOLE | {name: "x", "latency": 3})
    assert error.value.reason == f"unknown field {name!r}, did you mean {meant!r}"


@pytest.mark.parametrize(
    "name", ["model", "messages", "response"], ids=["modle", "mesages", "respones"]
)
def test_a_misspelt_field_is_told_before_what_it_leaves_out(
    name: str, request: pytest.FixtureRequest
) -> None:
    misspelt = request.node.callspec.id
    line = {misspelt if key == name else key: value for key, value in WHOLE.items()}
    with pytest.raises(BrokenError, match=f"unknown field '{misspelt}', did you mean '{name}'"):
        read(line)


def test_fields_that_resemble_none_that_is_lacking_are_fine() -> None:
    names = [
        "created_at", "updated_at", "timestamp", "latency", "latency_ms", "score", "session_id",
        "request_id", "_id", "uid", "finish_reason", "total_tokens", "provider", "feedback",
        "response_ms", "model_name", "model_id", "language", "metadata_json", "stored", "ip",
    ]  # fmt: skip
    line = WHOLE | dict.fromkeys(names, "x")
    assert read(line).unread == tuple(sorted(names))
    # One that is there is not misspelt, and one that is shared changes nothing.
    assert read(line | {"tenant": "acme", "tenant_id": 7}).scope["tenant"] == "acme"
    assert read(line | {"user_id": 7}, shared=("user",)).unread[-1] == "user_id"
    with pytest.raises(BrokenError, match="'user_id', did you mean 'user'"):
        read(line | {"user_id": 7})
    with pytest.raises(BrokenError, match="'tenant_id', did you mean 'tenant'"):
        read(line | {"tenant": None, "tenant_id": 7})
    # Nor is the response lacking where the last message is the answer.
    answer = {"role": "assistant", "content": "A cat."}
    tuned = {**WHOLE, "messages": [*WHOLE["messages"], answer], "response_id": "7"}
    del tuned["response"]
    assert read(tuned).response == "A cat."
    assert read(WHOLE | {"min_tokens": 1, "top_a": 0.2}).unread == ()
