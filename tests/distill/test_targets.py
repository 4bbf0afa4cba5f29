from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from distill.bridge import BridgeTeacher
from distill.store import Store, write_store
from distill.targets import BridgeTargets, OnlineTargets, Targets
from keynet.types import Request, Samples

Make = Callable[..., Any]
IDS = torch.tensor([5, 0, 11, 5])


@pytest.fixture
def samples(make_samples: Make) -> Samples:
    return make_samples()


def stored(folder: Path, teacher: Any, samples: Samples) -> Store:
    write_store(folder, teacher, samples, "data")
    return Store(folder, teacher, samples, "data")


def test_the_teacher_asked_gives_what_a_store_gives(
    tmp_path: Path, make_teacher: Make, samples: Samples
) -> None:
    teacher = make_teacher()
    online, offline = OnlineTargets(teacher, samples), stored(tmp_path, teacher, samples)
    for modality in ("image", "text"):
        for ids in (IDS, IDS[:0]):
            found = online.rows(modality, ids)
            assert found.shape == (len(ids), 8)
            assert torch.equal(found, offline.rows(modality, ids))
            assert not found.requires_grad  # though this teacher does not turn gradients off


def test_the_teacher_asked_sees_the_samples_of_these_numbers(
    make_teacher: Make, samples: Samples
) -> None:
    teacher = make_teacher()
    OnlineTargets(teacher, samples).rows("text", torch.tensor([12, 3]))
    assert teacher.asked == ["question 0", "caption 3"]


def test_a_bridge_is_over_the_rows_of_its_parts(
    tmp_path: Path, make_teacher: Make, samples: Samples
) -> None:
    image = make_teacher("eye", dim=6, modalities=("image",))
    text = make_teacher("tongue", dim=7, seed=1, modalities=("text",))
    bridge = BridgeTeacher(name="bridge", image=image, text=text, dim=4, epochs=1)
    sources: list[tuple[Targets, Targets]] = [
        (OnlineTargets(image, samples), OnlineTargets(text, samples)),
        (stored(tmp_path / "i", image, samples), stored(tmp_path / "t", text, samples)),
    ]
    parts = sources[0]
    bridge.fit(
        parts[0].rows("image", torch.arange(12)),
        parts[1].rows("text", torch.arange(12)),
        samples.pairs,
    )
    asked = bridge.encode([Request(image=samples.pictures[n], text=samples.texts[n]) for n in IDS])
    for modality, expected in (("image", asked.image), ("text", asked.text)):
        rows = [BridgeTargets(bridge, *source).rows(modality, IDS) for source in sources]
        assert torch.equal(rows[0], rows[1])
        torch.testing.assert_close(rows[0], expected, atol=0.01, rtol=0)  # bf16 of the parts
        torch.testing.assert_close(rows[0].norm(dim=1), torch.ones(4))
