from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keynet.evaluation.labels import Labels
from keynet.types import Request


def test_fields_come_from_requests_and_tags() -> None:
    tags = {"picture": "p", "vendor": "v", "family": "is", "phrasing": "3", "negated": "1"}
    labels = Labels.of(
        [
            Request(image=b"x", text="a", group="g", entity="e", intent="i", tags=tags),
            Request(image=b"y", group="h", response="r"),
            Request(text="a", group="g", tags={"argument": "red"}),
        ]
    )
    assert labels.group.tolist() == [0, 1, 2]  # a text alone never meets a text with a picture
    assert labels.picture.tolist() == [0, 1, -1]
    assert labels.entity.tolist() == [0, -1, -1]
    assert labels.phrasing.tolist() == [0, -1, -1]
    assert labels.negated.tolist() == [True, False, False]
    assert labels.argument.tolist() == ["", "", "red"]
    assert labels.response.tolist() == ["", "r", ""]
    assert labels.modalities.tolist() == ["image+text", "image", "text"]
    assert labels.take(np.array([2, 0])).modalities.tolist() == ["text", "image+text"]


def test_requests_of_two_scopes_are_not_equivalent_whatever_their_group() -> None:
    def asked(tenant: str, system: str | None) -> Request:
        return Request(text="a", group="g", scope={"tenant": tenant, "system": system})

    labels = Labels.of(
        [asked("acme", None), asked("other", None), asked("acme", "Be brief."), asked("acme", None)]
    )
    assert labels.group.tolist() == [0, 1, 2, 0]
    assert len(set(labels.scope.tolist())) == 3
    assert len(set(labels.exact.tolist())) == 3
    assert len(set(labels.content.tolist())) == 1
    with pytest.raises(ValueError, match="a replay compares all requests"):
        labels.require_one_scope("a replay")
    labels.take(np.array([0, 3])).require_one_scope("a replay")


def test_exact_is_verbatim_identity(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    pixels = np.zeros((2, 3, 3), dtype=np.uint8)
    requests = [
        Request(image=b"x", text="a", group="g"),
        Request(image=str(tmp_path / "x"), text="a", group="g"),
        Request(image=b"x", text="b", group="g"),
        Request(image=b"x", group="g"),
        Request(text="a", group="g"),
        Request(image=pixels, text="a", group="g"),
        Request(image=pixels.reshape(3, 2, 3), text="a", group="g"),
    ]
    exact = Labels.of(requests).exact.tolist()
    assert exact[0] == exact[1]
    assert len(set(exact)) == 6


def test_a_request_without_group_is_named() -> None:
    with pytest.raises(ValueError, match="request 1 has no group"):
        Labels.of([Request(text="a", group="g"), Request(text="b")])
