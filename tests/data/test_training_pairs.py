from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from data.training_pairs import training_triples, write_triples
from keynet.types import Request


def ask(image: bytes | None, text: str | None, group: str, intent: str | None = None) -> Request:
    return Request(image=image, text=text, group=group, intent=intent)


def test_every_triple_is_one(toy_source: object) -> None:
    requests = toy_source.requests("train")  # type: ignore[attr-defined]
    triples = list(training_triples([*requests, *requests]))
    assert len(triples) > 80
    anchors = [(a.image, a.text) for a, _, _ in triples]
    assert len(set(anchors)) == len(anchors)
    for anchor, positive, negative in triples:
        assert anchor.group == positive.group != negative.group
        assert (anchor.image, anchor.text) != (positive.image, positive.text)
        assert anchor.modalities == positive.modalities == negative.modalities
    assert triples == list(training_triples([*requests, *requests]))
    assert triples != list(training_triples([*requests, *requests], seed=1))


def test_negatives_are_as_hard_as_can_be() -> None:
    anchors = [ask(b"1", "colour?", "red", "colour"), ask(b"2", "colour?", "red", "colour")]
    far = ask(b"3", "round?", "yes", "round")
    beside = ask(b"1", "big?", "no", "big")
    other = ask(b"3", "colour?", "blue", "colour")

    def negatives(*others: Request) -> list[Request]:
        return [negative for _, _, negative in training_triples([*anchors, *others])]

    assert negatives(far, beside, other) == [other, other]
    assert negatives(far, beside)[0] == beside
    assert negatives(far) == [far, far]
    assert negatives() == []
    assert negatives(replace(far, image=None)) == []


def test_what_is_written(tmp_path: Path) -> None:
    triples = iter(
        [
            (ask(b"1", "größer?", "a"), ask(b"2", None, "a"), ask(None, "kleiner?", "b")),
            (ask(None, "x", "a"), ask(None, "y", "a"), replace(ask(b"1", "z", "b"), image="p.png")),
        ]
    )
    assert write_triples(triples, tmp_path / "pairs.jsonl") == 2
    first, second = map(json.loads, (tmp_path / "pairs.jsonl").read_text().splitlines())
    assert first == {
        "anchor": "größer?", "positive": None, "negative": "kleiner?",
        "anchor_image": f"sha256:{hashlib.sha256(b'1').hexdigest()}",
        "positive_image": f"sha256:{hashlib.sha256(b'2').hexdigest()}",
    }  # fmt: skip
    assert second == {"anchor": "x", "positive": "y", "negative": "z", "negative_image": "p.png"}


def test_a_triple_is_of_one_scope(toy_source: object) -> None:
    requests = toy_source.requests("train")  # type: ignore[attr-defined]
    twice = [replace(r, scope={"tenant": name}) for name in ("a", "b") for r in requests]
    triples = list(training_triples(twice))
    assert len(triples) == 2 * len(list(training_triples(requests)))
    assert all(a.scope == p.scope == n.scope for a, p, n in triples)
