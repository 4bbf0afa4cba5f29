from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from keynet.evaluation.captions import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from keynet.evaluation.consistency import consistency_records
from keynet.evaluation.evaluate import evaluate, photographs, signs
from keynet.evaluation.latency import latency_records
from keynet.evaluation.output import write_evaluation
from keynet.evaluation.settings import JudgeSettings
from keynet.pictures import open_image
from keynet.types import KeySpace, Request


def repaint(request: Request) -> dict[str, Request]:
    """One perturbation that changes no colour, and one that changes all."""
    if request.image is None:
        return {}
    made, picture = {}, open_image(request.image)
    for name, image in (
        ("same", picture.resize((3, 3))),
        ("inverted", Image.fromarray(255 - np.asarray(picture))),
    ):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        made[name] = replace(request, image=buffer.getvalue())
    return made


def test_consistency_counts_bits_and_codes_that_stay(toy_source, fake_encoder) -> None:
    pictured = [r for r in toy_source.requests("test") if r.image is not None]
    records = consistency_records(fake_encoder, pictured, repaint, "toy", "fake")
    found = {(r.subset, r.metric): r.value for r in records}
    for kept in ("consistency:same", "consistency:batch_1_against_64"):
        assert found[kept, "consistency_codes"] == 1
        assert found[kept, "consistency_bits"] == 1
    assert found["consistency:inverted", "consistency_codes"] == 0
    assert 0.4 < found["consistency:inverted", "consistency_bits"] < 0.6


def test_latency_names_batch_and_percentile(toy_source, fake_encoder) -> None:
    requests = (toy_source.requests("test") * 2)[:100]
    records = latency_records(fake_encoder, requests, "toy", "fake")
    assert [(r.subset, r.metric, r.n) for r in records] == [
        ("batch_1", "latency_ms_p50", 100),
        ("batch_1", "latency_ms_p99", 100),
        ("batch_64", "latency_ms_p50", 5),
    ]
    assert all(r.value > 0 and r.unit == "ms" for r in records)


def test_code_rows_have_the_hamming_distance_as_inner_product() -> None:
    codes = np.random.default_rng(0).integers(0, 256, (5, 16), dtype=np.uint8)
    rows = signs(codes, 64)
    distance = np.unpackbits(codes[:, None, :8] ^ codes[None, :, :8], axis=2).sum(2)
    assert np.allclose(rows @ rows.T, 1 - 2 * distance / 64, atol=1e-6)


@pytest.fixture(scope="module")
def found(toy_source, fake_encoder):
    settings = JudgeSettings(visits=40, orders=2)
    return evaluate(
        fake_encoder,
        toy_source,
        method="fake",
        perturb=repaint,
        settings=settings,
        baseline_image_size=None,
        consistency_requests=20,
        latency_requests=64,
    )


def test_every_prefix_and_the_oracle_are_judged(found) -> None:
    methods = {(r.method, r.bits) for r in found.records}
    assert methods == {("fake", None), ("fake", 128), ("fake", 64), ("oracle", None)}
    params = [r.value for r in found.records if r.metric == "params"]
    assert params == [7.0]


def test_an_evaluation_is_written_whole(found, tmp_path, capsys) -> None:
    write_evaluation(found, tmp_path, "python train.py", ["Pictures: nobody."])
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["records"]) == len(found.records)
    assert "Pictures: nobody." in (tmp_path / "report.html").read_text()
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "fake" in capsys.readouterr().out


COUNT = 30


class Captioned:
    """The toy source with thirty photographs, two captions each, not side by side."""

    def __init__(self, source) -> None:
        self.name, self.requests, self.disjoint_phrasings = "toy", source.requests, False
        self.asked: list[str] = []

    def captions(self, split: str) -> list[Request]:
        self.asked.append(split)
        return [
            Request(image=b"photograph %d" % n, text=f"{word} {n}", entity=f"entity {n}")
            for word in ("first", "second")
            for n in range(COUNT)
        ]


class Searching:
    """Axes by the number at the end; every ``lost``-th text points elsewhere."""

    num_parameters = 7
    code_lengths = (64, 128)

    def __init__(self, encoder, name: str, lost: int) -> None:
        self.encode, self.encode_arrays = encoder.encode, encoder.encode_arrays
        self.name, self.lost, self.modalities = name, lost, ("image", "text")
        self.space = KeySpace(name, 1, 32, 128, "0" * 16)

    def encode_modalities(self, requests):
        rows = {"image": np.zeros((len(requests), COUNT), np.float32)}
        rows["text"] = rows["image"].copy()
        for row, request in enumerate(requests):
            for modality in ("image", "text"):
                content = getattr(request, modality)
                if content is not None:
                    number = int((content if modality == "text" else content.decode()).split()[-1])
                    if modality == "text" and number % self.lost == 0:
                        rows[modality][row] = -1
                    rows[modality][row, number] = 1 if rows[modality][row, number] == 0 else -5
        return rows["image"], rows["text"]


class Teaching:
    """The same as a teacher, its rows of any length."""

    def __init__(self, searching: Searching, modalities=("image", "text")) -> None:
        self.name, self.modalities, self.searching = searching.name, modalities, searching

    def encode(self, requests):
        rows = self.searching.encode_modalities(requests)
        return tuple(
            3 * torch.from_numpy(found) if modality in self.modalities else None
            for modality, found in zip(("image", "text"), rows, strict=True)
        )


@pytest.fixture(scope="module")
def captioned(toy_source, fake_encoder):
    teacher = Teaching(Searching(fake_encoder, "clip", lost=100))  # 100: text 0 alone
    source = Captioned(toy_source)
    found = evaluate(
        Searching(fake_encoder, "mine", lost=3),
        source,
        method="mine",
        perturb=repaint,
        settings=JudgeSettings(visits=20, orders=1),
        baseline_image_size=None,
        consistency_requests=5,
        latency_requests=4,
        teachers=[teacher, Teaching(teacher.searching, ("image",))],
        against=Searching(fake_encoder, "older", lost=2),
    )
    assert source.asked == ["test"]
    return found


def other_model(captioned) -> str:
    """The other export, told apart by its key space: its name may be the same."""
    return next(r.method for r in captioned.records if r.method.startswith("older:"))


def test_captions_are_searched_by_the_model_its_teachers_and_another_model(captioned) -> None:
    found = {(r.method, r.subset): r.value for r in captioned.records if r.metric == "recall_at_10"}
    share = {"mine": 20 / 30, other_model(captioned): 15 / 30, "teacher:clip": 29 / 30}
    assert found == pytest.approx(
        {(m, s): v for m, v in share.items() for s in (TEXT_TO_IMAGE, IMAGE_TO_TEXT)}
    )
    texts = next(r for r in captioned.records if r.metric == "recall_at_10")
    assert (texts.data, texts.n) == ("toy", 2 * COUNT)


def test_the_model_is_compared_with_its_teacher_and_the_other_model(captioned) -> None:
    retention = [r for r in captioned.records if r.metric == "retention_at_10"]
    assert [(r.method, r.subset) for r in retention] == [("mine", "text_to_image:teacher:clip")]
    assert retention[0].value == pytest.approx(20 / 29)
    gain = [r for r in captioned.records if r.metric == "recall_at_10_gain"]
    assert [(r.method, r.subset) for r in gain] == [
        ("mine", f"text_to_image:{other_model(captioned)}")
    ]
    assert gain[0].value == pytest.approx((20 - 15) / 30)
    assert "overlap_at_10" in {r.metric for r in captioned.records}


def test_without_captions_nothing_is_searched(found) -> None:
    assert not [r for r in found.records if r.metric.startswith(("recall_at_1", "retention"))]


def test_photographs_are_the_entities_in_their_order(toy_source) -> None:
    first, picture_of = photographs(Captioned(toy_source).captions("test")[5:])
    assert first[:2] == [0, 1] and len(first) == COUNT
    assert first[-5:] == [25, 26, 27, 28, 29]  # photographs 0 to 4, by their second caption
    assert picture_of[:3].tolist() == [0, 1, 2] and picture_of[25] == 25 and picture_of[30] == 0
