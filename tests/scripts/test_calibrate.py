"""scripts.calibrate: what it writes, and how a stopped check goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from data import held_out
from keynet.cache.calibrated import CalibratedThresholds
from keynet.cache.threshold import Threshold
from keynet.evaluation.calibration import FittedThreshold
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Sheet
from keynet.export.manifest import StoredThreshold
from keynet.types import Key, KeySpace, Request
from scripts import calibrate as script

SPACE = KeySpace("toy", 1, 64, 64, "f00df00df00df00d")
CONF = Path(__file__).parents[2] / "conf"


@dataclass
class Toy:
    """A source and its key model: a random key a group."""

    entities: int = 700
    name: str = "toy"
    attribution: tuple[str, ...] = ()
    disjoint_phrasings: bool = False
    space: KeySpace = SPACE
    code_lengths: tuple[int, ...] = (64,)
    thresholds: tuple[StoredThreshold, ...] = field(default=())

    def requests(self, split: str) -> list[Request]:
        return [
            Request(
                image=f"{split} {entity} {visit}".encode(),
                text=f"{visit}",
                response=str(entity // 2),
                group=f"{split} {entity // 2}",  # two pictures of a group
                entity=f"{split} {entity}",
                tags={"picture": f"{split} {entity}"},
            )
            for entity in range(self.entities)
            for visit in range(3)
        ]

    def encoded(self, _: Any, requests: list[Request], labels: Labels, __: Path) -> dict:
        keys = np.random.default_rng(0).normal(size=(labels.group.max() + 1, 64))
        keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
        rows = keys[labels.group]
        return {"key": rows, "code": np.packbits(rows >= 0, axis=1)}


def config(tmp_path: Path, **changes: Any) -> DictConfig:
    found = {
        "export": str(tmp_path), "budgets": [0.01], "check": 0, "splits": ["calibration", "test"],
        "drift": None, "bits": None, "seed": 0, "keep": str(tmp_path / "keep"),
        "out": str(tmp_path / "out"),
    }  # fmt: skip
    return OmegaConf.create(found | changes)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[StoredThreshold]:
    """What was written into a manifest."""
    found: list[StoredThreshold] = []
    monkeypatch.setattr(script, "set_thresholds", lambda _, thresholds: found.extend(thresholds))
    return found


def with_toy(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Toy:
    toy = Toy(**options)
    monkeypatch.setattr(script, "encoded_keys", toy.encoded)
    return toy


def test_what_it_writes_is_what_a_cache_accepts_by(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: list[StoredThreshold],
    capsys: pytest.CaptureFixture[str],
) -> None:
    toy = with_toy(monkeypatch)
    script.calibrate(config(tmp_path), toy, toy)
    assert {(one.kind, one.bits) for one in written} == {
        (kind, bits) for kind in ("closed_loop", "fixed_store") for bits in (None, 64)
    }
    assert {one.data for one in written} == {"toy/calibration"}
    rule = CalibratedThresholds(Toy(thresholds=tuple(written)), 0.01)
    key = Key(SPACE, np.zeros(64, np.float32), np.zeros(8, np.uint8), None, "")
    value = rule.threshold(key, "image+text")
    assert value is not None and 0 < value <= 1
    printed = capsys.readouterr().out
    assert f"{value:.4f}" in printed


def test_too_few_samples_for_the_budget_end_with_how_many_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[StoredThreshold]
) -> None:
    toy = with_toy(monkeypatch, entities=30)
    with pytest.raises(ValueError, match="toy gives no threshold: needs 299"):
        script.calibrate(config(tmp_path), toy, toy)
    assert not written


@pytest.mark.parametrize("trained", [200, 670])
def test_what_was_trained_on_is_not_calibrated_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: list[StoredThreshold],
    trained: int,
) -> None:
    toy = with_toy(monkeypatch)
    every = toy.requests("calibration")
    numbers = np.unique(held_out.content_numbers(every[: 3 * trained]))
    asked: list[Request] = []

    def encoded(encoder: Any, requests: list[Request], labels: Labels, keep: Path) -> dict:
        asked.extend(requests)
        return toy.encoded(encoder, requests, labels, keep)

    monkeypatch.setattr(script, "encoded_keys", encoded)
    monkeypatch.setattr(script, "load_key_model", lambda _: toy)
    monkeypatch.setattr(script, "instantiate", lambda _: toy)
    monkeypatch.setattr(held_out, "read_trained_on", lambda _: numbers)
    cfg = config(tmp_path, data={"source": {}})
    if trained == 200:
        script.run(cfg)
        assert written
    else:
        said = "needs 299 .*; calibration: 2,010 of 2,100 requests left out, since the model was"
        with pytest.raises(ValueError, match=said):
            script.run(cfg)
        assert not written
    assert asked == every[3 * trained :]


def test_a_stopped_check_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = with_toy(monkeypatch)
    asked: list[int] = []
    check = script.check_split

    def counted(pool: Any, settings: Any, budget: float, number: int) -> Any:
        asked.append(number)
        return check(pool, settings, budget, number)

    monkeypatch.setattr(script, "check_split", counted)
    script.check(config(tmp_path, check=2), toy, toy)
    path = tmp_path / "out" / "splits.jsonl"
    path.write_text(path.read_text() + '{"closed_loop": {"thr')  # stopped while it wrote
    records = script.check(config(tmp_path, check=3), toy, toy)
    assert asked == [0, 1, 2]
    broken = next(r for r in records if (r.method, r.metric) == ("closed_loop", "broken_at_0.01"))
    assert (broken.value, broken.n, broken.split) == (0.0, 3, "calibration+test")
    with pytest.raises(ValueError, match="give another out="):
        script.check(config(tmp_path, check=3, seed=1), toy, toy)


def test_a_threshold_that_is_none_says_why() -> None:
    why = "needs 299 served queries for a budget of 0.01, has 90"
    none = Threshold(None, "fixed_store", 0.01, 0.95, 90, reason=why)
    found = Threshold(0.91234, "closed_loop", 0.01, None, 12345)
    grid = script.threshold_grid(
        [
            FittedThreshold(found, "image+text", None), FittedThreshold(none, "image", 64),
            FittedThreshold(none, "image", 256),
        ],
        "toy",
    )  # fmt: skip
    assert [[row.label, *map(str, row.cells)] for row in grid.rows] == [
        ["closed_loop", "image+text", "float", "0.01", "0.9123", "12,345"],
        ["fixed_store", "image", "64", "0.01", "n/a", "90"],
        ["fixed_store", "image", "256", "0.01", "n/a", "90"],
    ]
    assert grid.notes == (f"n/a: fixed_store, image: {why}",)


def test_figures_are_shown_a_row_a_rule_and_subset_with_their_intervals() -> None:
    before, after = (Sheet("toy", "test", f"{half}: B", "fixed", None) for half in ("a", "b"))
    grid = script.figures_grid(
        [
            before.share("hit_rate_at_0.01", 20, 50), before.figure("kl", 0.5, n=50, unit="nats"),
            after.share("hit_rate_at_0.01", 0, 0),
        ]
    )  # fmt: skip
    assert [" ".join(column) for column in grid.columns] == ["hit rate at 0.01", "kl"]
    assert [[row.label, *map(str, row.cells)] for row in grid.rows] == [
        ["fixed, a: B", "40.0 (26.4 to 54.8)", "0.5"],
        ["fixed, b: B", "n/a", "-"],
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"check": 1, "bits": 32}, "bits=32: expected null or one of"),
        ({"drift": "noise"}, "vendor"),
    ],
)
def test_an_option_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    toy = with_toy(monkeypatch)
    run = script.check if "check" in changes else script.drift
    with pytest.raises(ValueError, match=message):
        run(config(tmp_path, **changes), toy, toy)


@pytest.mark.parametrize("data", ["emoji", "easy_vqa", "flickr8k"])
def test_the_configuration_has_what_the_script_reads(tmp_path: Path, data: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        found = compose("calibrate", [f"data={data}", "export=x"])
    assert set(config(tmp_path)) <= set(found)
    assert found.data.source._target_.startswith("data.")
