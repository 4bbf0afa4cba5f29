from __future__ import annotations

from dataclasses import replace
from typing import Any

from data.datamodule import RequestBatches
from tests.data.test_datamodule import data_module


def test_an_entity_may_be_shown_by_several_originals(toy_source: Any) -> None:
    module = data_module(toy_source)
    one = next(r for r in module.requests if r.image is not None)
    pictures = ("p", "p", "q", None)
    asked = [
        replace(one, tags={} if picture is None else {"picture": picture}) for picture in pictures
    ]
    text = replace(one, image=None, text="What?")
    made = RequestBatches([*asked, replace(one, entity=None), text], module.preprocessor)
    assert made[range(6)].original.tolist() == [0, 0, 1, 2, -1, -1]
    assert made[range(6)].entity.tolist() == [0, 0, 0, 0, -1, -1]
