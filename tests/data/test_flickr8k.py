from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from data.captioned import Captioned
from data.webdataset import read_shards

FLICKR8K = Path(__file__).parents[2].parent / "shared/data/flickr8k"


@pytest.mark.skipif(not FLICKR8K.is_dir(), reason="Flickr8k is not at ../shared/data/flickr8k")
def test_flickr8k() -> None:
    made = Captioned(
        train=f"{FLICKR8K}/train-{{00..02}}.tar",
        test=f"{FLICKR8K}/val.tar",
        read=read_shards,
    )
    training, test = made._training, made._test
    assert (len(training), len(test)) == (6590, 500)
    assert {len(p.captions) for p in training + test} == {5}
    assert not {p.name for p in training} & {p.name for p in test}
    development = {r.entity for r in made.captions("development")}
    assert len(development) == 500
    trained = {p.name for p in made._photographs("train")}
    assert len(trained) == 6590 - 500
    assert not trained & development
    asked = {s: made.requests(s) for s in ("calibration", "test")}  # type: ignore[arg-type]
    assert {r.entity for r in asked["calibration"]} <= development
    for requests in asked.values():
        assert len(requests) > 2000
        answers = Counter(r.response for r in requests)
        assert answers["yes"] == answers["no"]
