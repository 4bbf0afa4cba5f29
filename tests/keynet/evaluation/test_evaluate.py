from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from keynet.evaluation.consistency import consistency_records
from keynet.evaluation.evaluate import _signs, evaluate
from keynet.evaluation.latency import latency_records
from keynet.evaluation.output import write_evaluation
from keynet.evaluation.settings import JudgeSettings


def repaint(picture: Image.Image) -> dict[str, bytes]:
    """One perturbation that changes no colour, and one that changes all."""
    made = {}
    for name, image in (
        ("same", picture.resize((3, 3))),
        ("inverted", Image.fromarray(255 - np.asarray(picture))),
    ):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        made[name] = buffer.getvalue()
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
    rows = _signs(codes, 64)
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
