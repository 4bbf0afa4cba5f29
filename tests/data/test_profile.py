from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from data.profile import EXACT, ORACLE, most_distinct_served, profile
from keynet.types import Request


def figures(requests: list[Request]) -> dict[str, float | None]:
    return {f"{f.cache} {f.what}".strip(): f.value for f in profile(requests)}


def ask(text: str | None, image: bytes | None = None, **more: object) -> Request:
    return Request(text=text, image=image, **more)  # type: ignore[arg-type]


def test_what_is_counted(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(bytes(7))
    found = figures(
        [
            ask("what", b"a", group="1", tags={"conversation": "x", "language": "en"}),
            ask("which one", b"bbb", group="1", scope={"model": "m"}, tags={"conversation": "x"}),
            ask("what", b"a", group="2", tags={"conversation": "y"}),
            Request(image=str(tmp_path / "c"), group="3"),
            Request(image=np.zeros((2, 2, 3), np.uint8), group="3"),
        ]
    )
    assert found["requests"] == 5
    assert (found["image+text"], found["image"], found["text"]) == (0.6, 0.4, 0)
    assert found["language:en"] == 0.2
    assert (found["scopes"], found["conversations"], found["groups"]) == (2, 2, 4)
    assert (found["pictures"], found["texts"]) == (4, 2)
    assert (found["picture_bytes_p50"], found["picture_bytes_most"]) == (3, 7)
    assert (found["text_characters_p50"], found["text_characters_most"]) == (6.5, 9)
    assert found["in_groups_of_several"] == 0.4


def test_what_caches_save() -> None:
    first = ask("what", b"a", group="1", tags={"tokens": "10"})
    requests = [
        first,
        replace(first, tags={"tokens": "30"}),  # verbatim
        replace(first, image=b"b"),  # equivalent
        replace(first, scope={"tenant": "t"}),  # of another scope
        replace(first, image=None),  # of other modalities
        replace(first, text="What", tags={}),  # equivalent, and not verbatim
    ]
    found = figures(requests)
    assert found[f"{EXACT} saved_requests"] == 1 / 6
    assert found[f"{EXACT} saved_tokens"] == 30 / 70
    assert found[f"{ORACLE} saved_requests"] == 3 / 6
    assert found[f"{ORACLE} saved_tokens"] == 40 / 70


def test_what_the_data_do_not_say_is_none() -> None:
    found = figures([ask("what")])
    assert found[f"{EXACT} saved_tokens"] is None
    assert found["pictures"] is found["picture_bytes_p50"] is found["groups"] is None
    assert figures([])["image"] is None


def test_how_many_different_questions_a_perfect_key_serves() -> None:
    assert most_distinct_served([]) == 0
    pictures = [ask("what", bytes([n]), group="1") for n in range(5)]
    assert most_distinct_served(pictures) == 4  # the first is asked upstream
    assert most_distinct_served([*pictures, pictures[0]]) == 5
    apart = [replace(r, scope={"tenant": str(n % 2)}) for n, r in enumerate(pictures)]
    assert most_distinct_served(apart) == 2 + 1
    assert most_distinct_served([ask("what", b"1", group=str(n)) for n in range(5)]) == 0
    # Texts alone are another cache, and of these the larger counts.
    texts = [ask(f"text {n}", group="2") for n in range(7)]
    assert most_distinct_served([*pictures, *texts]) == 6
