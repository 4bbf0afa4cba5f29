"""The commands on toy requests whose keys are made of their groups."""

from __future__ import annotations

import io
import types
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keynet.evaluation import replay_data, replay_laboratory
from keynet.evaluation.labels import Labels
from keynet.evaluation.page import Pair
from keynet.evaluation.records import Record
from keynet.evaluation.replay_data import ReplayData
from keynet.evaluation.replay_findings import Findings, method_grid
from keynet.evaluation.replay_laboratory import COMMANDS, Laboratory
from keynet.evaluation.replay_page import worst_false_hits, write_replay_page
from keynet.evaluation.replay_records import RATIO, RATIO_UNTOLD, ratio_record
from keynet.evaluation.replay_strategies import (
    STRATEGIES,
    StrategyReplay,
    check_strategies,
    fit_limits,
)
from keynet.evaluation.settings import JudgeSettings
from keynet.replay.semantic_trace import SemanticTrace, map_to_requests
from keynet.replay.trace import Visit
from keynet.types import KeySpace, Request

BUDGET = 0.05  # 59 distinct questions suffice to calibrate it
SETTINGS = JudgeSettings(budgets=(0.01, BUDGET), wholes=2, halves=4)
SPACE = KeySpace("toy", 1, 32, 256, "0" * 16)


def part_rows(values: np.ndarray, seed: int, noise: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((int(values.max()) + 2, 32))[values]
    rows += noise * rng.standard_normal(rows.shape)
    rows[values < 0] = 0
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(norm == 0, 1, norm)).astype(np.float32)


def png(name: str) -> bytes:
    pixels = np.random.default_rng(zlib.crc32(name.encode())).integers(256, size=(8, 8, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def toy_requests(split: str) -> list[Request]:
    """90 entities drawn by two vendors, one of two questions asked five times of each drawing."""
    rng = np.random.default_rng(len(split))
    made = []
    for entity in range(90):
        for vendor in "AB":
            family, shown = ("name", "kind")[int(rng.integers(2))], str(entity % 3)
            answer = str(entity) if family == "name" else shown
            tags = {"picture": f"{vendor}/{entity}", "vendor": vendor, "family": family}
            image = f"{split} {entity} {vendor}"
            for visit in range(5):
                made.append(
                    Request(
                        image=png(f"{image} {visit}"), text=f"{family} {rng.integers(3)}",
                        response=answer, group=f"{family}|{answer}", entity=str(entity),
                        intent=family, tags=tags,
                    )
                )  # fmt: skip
            made.append(
                Request(
                    image=png(f"{image} alone"), response=str(entity),
                    group=f"describe|{entity}", entity=str(entity), intent="describe", tags=tags,
                )
            )  # fmt: skip
    texts = sorted({str(r.text) for r in made if r.text})
    return made + [Request(text=t, response="none", group=f"none|{t}", intent=t) for t in texts]


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    patch = pytest.MonkeyPatch()

    def keys(encoder: Any, requests: Any, labels: Labels, folder: Path) -> Mapping[str, Any]:
        rows = part_rows(labels.group, 1, 0.05)
        code = np.packbits(
            rows @ np.random.default_rng(9).standard_normal((32, 256)).astype(np.float32) >= 0,
            axis=1,
        )
        image, text = part_rows(labels.entity, 2, 0.1), part_rows(labels.intent, 3, 0.1)
        alignment = np.full(len(rows), 0.5, np.float32)
        return {"key": rows, "code": code, "alignment": alignment, "image": image, "text": text}

    def parts(requests: Any, labels: Labels, folder: Path, size: int) -> Mapping[str, Any]:
        return {"image": part_rows(labels.picture, 4, 0.3), "text": part_rows(labels.intent, 5, 0)}

    patch.setattr(replay_data, "encoded_keys", keys)
    patch.setattr(replay_data, "encoded_parts", parts)
    patch.setattr(
        replay_laboratory,
        "encode_seconds",
        lambda data, names: {name: np.full(5, 0.001) for name in names},
    )
    yield tmp_path_factory.mktemp("keep")
    patch.undo()


@pytest.fixture(scope="module")
def lab(keep: Path) -> Laboratory:
    source = types.SimpleNamespace(name="toy", disjoint_phrasings=False, requests=toy_requests)

    encoder = types.SimpleNamespace(space=SPACE)
    held = ReplayData.of(source, encoder, keep)  # type: ignore[arg-type]
    labels = held.labels["test"]
    rng = np.random.default_rng(0)
    visits = [
        Visit(0.2 * at, int(asked), 100) for at, asked in enumerate(rng.zipf(1.3, size=1000) % 300)
    ]

    def make(number: int, shares: Mapping[str, Mapping[str, float]]) -> SemanticTrace:
        return map_to_requests(
            visits, labels.group, labels.modalities, most=1000, seed=number, **shares
        )

    return Laboratory(
        data=held,
        make=make,
        traces=1,
        settings=SETTINGS,
        budget=BUDGET,
        strategies=list(STRATEGIES),
        policies=["lru", "ssrp"],
        shares=[0.05, 0.2],
        place="toy",
    )


@pytest.fixture(scope="module")
def short(lab: Laboratory) -> Laboratory:
    """The same with traces of 300 visits."""
    return replace(lab, make=lambda number, shares: lab.make(number, shares).take(np.arange(300)))


def value(records: list[Record], method: str, metric: str, subset: str = "") -> float:
    (found,) = (
        r.value
        for r in records
        if (r.method, r.metric) == (method, metric) and r.subset.startswith(subset)
    )
    assert found is not None
    return found


def test_strategies_are_told_apart(lab: Laboratory) -> None:
    found = COMMANDS["strategies"](lab)
    records = found.records
    hits = {name: value(records, name, "hits_after_1000") for name in (*STRATEGIES, "oracle")}
    assert hits["aligned"] == pytest.approx(hits["oracle"], abs=0.01)
    assert hits["aligned"] > hits["image_and_text"] > hits["exact"]
    assert hits["ids"] >= hits["exact"] == hits["fused_sha256"]
    assert value(records, "exact", "false_hit_rate") == 0
    assert value(records, "aligned", "false_hit_rate") <= BUDGET
    assert value(records, "text_only", "false_hit_rate") > 0.3
    ratio = next(r for r in records if r.metric == RATIO)
    assert ratio.low is not None and ratio.value is not None and ratio.low > 1
    assert ratio.note.split()[-1] in set(STRATEGIES) - {"aligned", "text_only", "image_only"}
    assert len(found.grids[0].rows) == len(STRATEGIES) + 1
    over = {row.label: [cell.over for cell in row.cells] for row in found.grids[0].rows}
    assert over["text_only"][1] and over["text_only"][3] and not any(over["exact"])
    assert found.plots


def test_policies_lose_to_perfect_keys_and_gain_by_capacity(short: Laboratory) -> None:
    found = COMMANDS["policies"](short)
    small, large = (f"policies at {share} %" for share in (5, 20))
    for policy in ("lru", "ssrp"):
        assert value(found.records, policy, "hit_rate", small) < value(
            found.records, policy, "hit_rate", large
        )
    lru = value(found.records, "lru", "hit_rate", large)
    assert lru <= value(found.records, "oracle", "hit_rate", large) + 0.02
    assert sum("ssrp" in note for note in found.grids[0].notes) == 2


def test_modalities_and_misaligned_keys(short: Laboratory) -> None:
    found = COMMANDS["modalities"](short)
    traffic, keys = found.grids
    assert len(traffic.columns) == 10 and len(keys.columns) == 8
    assert len(found.plots) == 1 and len(found.plots[0][1].axes) == 9
    log = found.plots[0][1].axes[3].yaxis  # a page has no TeX
    assert [log.get_major_formatter()(one) for one in (0.1, 1, 100)] == ["0.1", "1", "100"]
    assert log.get_minor_formatter()(2) == ""
    aligned = value(found.records, "lru", "hit_rate", "keys aligned")
    assert value(found.records, "lru", "hit_rate", "keys shuffled") < aligned
    # Half of the keys no longer meet the others.
    assert value(found.records, "lru", "hit_rate", "keys half_rotated") < aligned


def test_shards_cost_hits_and_are_decided(short: Laboratory) -> None:
    found = COMMANDS["cold_start"](short)
    sharded = next(
        r for r in found.records if r.metric.startswith("hit_rate_over") and "shards" in r.method
    )
    assert sharded.high is not None and sharded.high < 0 and sharded.note == "decided"


def test_entropy_and_counting(short: Laboratory) -> None:
    found = COMMANDS["entropy"](short)
    assert 0 < value(found.records, "aligned", "wrong_matches") < 1
    counted = COMMANDS["counting"](short).records
    assert value(counted, "strings", "underrated") > value(counted, "entries", "underrated")
    assert value(counted, "entries", "keys_of_a_resource") < 1.2


def test_hashes_are_not_calibrated_and_two_thresholds_are(lab: Laboratory) -> None:
    assert fit_limits(lab.data, "exact", SETTINGS, BUDGET).value == 1
    two = lab.limits("image_and_text")
    assert two.value is not None and two.text is not None and -1 <= two.value <= 1


def test_names_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="no strategy 'alined'; known are aligned, exact"):
        check_strategies(["alined"])
    with pytest.raises(ValueError, match="no strategies given"):
        check_strategies([])


def outcome(hits: int, false: int) -> StrategyReplay:
    codes = np.repeat(np.array([1, 2, 0], np.int8), [hits, false, 1000 - hits - false])
    return StrategyReplay(codes, np.zeros(1000, int), codes > 0, np.zeros(1000, np.float32))


def test_the_ratio_is_to_the_best_that_keeps_the_budget(lab: Laboratory) -> None:
    replays = {
        "aligned": [outcome(300, 0)], "ids": [outcome(100, 1)], "text_only": [outcome(290, 100)],
        "exact": [outcome(50, 0)],
    }  # fmt: skip
    sheet = lab.sheet("strategies", "aligned")
    found = ratio_record(sheet, replays, 0.01)
    assert found is not None and found.value == 3 and "ids" in found.note
    untold = ratio_record(sheet, replays, 0.01, untold=True)
    assert untold is not None and untold.value == 6 and untold.metric == RATIO_UNTOLD
    assert ratio_record(sheet, {"exact": [outcome(1, 0)]}, 0.01) is None


def test_the_page_shows_all_and_the_worst_first(lab: Laboratory, tmp_path: Path) -> None:
    found = Findings()
    found.add(COMMANDS["entropy"](lab))
    labels, requests = lab.data.labels["test"], lab.data.requests["test"]
    pairs = worst_false_hits(
        requests, labels, np.array([0, 1, 2, 2, 3]), np.array([0, 2, 2, 2, 2], np.int8),
        np.array([-1, 20, 38, 38, 39]), np.array([0, 0.8, 0.9, 0.9, 0.85], np.float32),
    )  # fmt: skip
    assert labels.group[2] == labels.group[3] and labels.group[38] == labels.group[39]
    assert [round(pair.similarity, 2) for pair in pairs] == [0.9, 0.8]
    assert isinstance(pairs[0], Pair) and pairs[0].query_text == requests[2].text
    found.pairs += pairs
    path = tmp_path / "report.html"
    write_replay_page(path, "toy <1>", found, ["nobody"], "command & co")
    page = path.read_text()
    for said in ("toy &lt;1&gt;", "command &amp; co", "Worst false hits", "pollution_a", "<svg"):
        assert said in page
    assert "<script" not in page and "http://" not in page


def test_a_grid_is_of_one_data_set(lab: Laboratory) -> None:
    one = lab.sheet("x", "lru").figure("hit_rate", 0.5)
    grid = method_grid([one], "t", [(("a",), one.subset, "hit_rate"), (("b",), "y", "hit_rate")])
    assert [str(cell) for cell in grid.rows[0].cells] == ["50.0", "-"]
