from __future__ import annotations

from pathlib import Path
from time import sleep

import numpy as np
import pytest

from keynet.cache import scope_codes
from keynet.cache.index import CodeIndex
from keynet.evaluation import index_cost as index_cost_module
from keynet.evaluation.index_cost import (
    GROUP,
    Clusters,
    codes_cost,
    cost_table,
    index_cost,
    recall,
    searched_while_inserting,
)
from keynet.types import KeySpace

SPACE = KeySpace("clusters", 1, 64, 128, "synthetic")


def test_groups_lie_close_and_apart_from_each_other() -> None:
    clusters = Clusters(SPACE, 1000)
    codes, vectors = clusters.rows(np.arange(1000) // GROUP)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    groups = codes.reshape(100, GROUP, -1)
    inside = np.bitwise_count(groups[:, :1] ^ groups[:, 1:]).sum(-1).mean() / 128
    outside = np.bitwise_count(groups[:-1] ^ groups[1:]).sum(-1) / 128
    assert 0.03 < inside < 0.05
    assert 0.4 < outside.mean() < 0.6
    assert outside.std() > 1.5 * np.sqrt(0.25 / 128)  # no coin flips


def test_recall_counts_codes_as_near_as_the_nearest() -> None:
    clusters = Clusters(SPACE, 1000)
    index = CodeIndex(SPACE)
    keys = clusters.keys(np.arange(1000) // GROUP)
    index.insert_many(range(1000), keys)
    stored, asked = np.stack([key.code for key in keys]), clusters.queries(50)
    assert recall(index, stored, asked) == 50
    for entry in range(500):
        index.remove(entry)
    known = [key for key in asked[::2] if recall(index, stored, [key])]
    assert 0 < len(known) < 25


def test_figures_of_an_index(tmp_path: Path) -> None:
    lines: list[str] = []
    records = index_cost(SPACE, 1000, 100, tmp_path, lines.append)
    found = {record.metric: record for record in records}
    assert found["recall_at_1_known"].value == found["recall_at_1_new"].value == 1
    assert found["disk_bytes_per_entry"].value == pytest.approx(8 + 16 + 4 + 16 + 128 + 4, rel=0.05)
    assert found["search_ms_p50"].note == "exact"
    for metric in (
        "bulk_inserts_per_second", "inserts_per_second", "search_ms_p50", "search_ms_p99",
        "search_ms_p50_inserting_paced", "search_ms_p99_inserting_full_speed", "restore_s",
        "inserts_per_second_searching_full_speed", "memory_bytes_per_entry",
    ):  # fmt: skip
        assert found[metric].value > 0
        assert (found[metric].subset, found[metric].bits) == ("entries_1000", 128)
    assert list(tmp_path.iterdir()) == []
    assert lines
    table = cost_table(records)
    assert "128 bits" in table and "restore_s" in table


@pytest.mark.parametrize("pause", [0, 1e-4])
def test_inserting_goes_on_as_long_as_searching(
    monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setattr(index_cost_module, "INSERTED", 5)
    clusters, index = Clusters(SPACE, 100), CodeIndex(SPACE)
    asked = clusters.queries(30)
    real, seen = CodeIndex.search, []

    def search(*args: object) -> object:
        sleep(0.005)
        seen.append(len(index))
        return real(*args)

    monkeypatch.setattr(CodeIndex, "search", search)
    times, rate, inserted = searched_while_inserting(index, clusters, asked, pause)
    assert len(times) == 30
    assert len(set(seen[len(seen) // 2 :])) > 3  # of 25; it grows to the end
    assert inserted == len(index) > 5
    assert rate > 0


def test_figures_of_codes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(scope_codes, "LISTS_FROM", 1500)
    records = codes_cost(SPACE, 2000, 60, lambda line: None)
    methods = {record.method for record in records}
    assert methods == {"codes: scan", "codes: inverted lists"}
    recalls = {(r.method, r.metric): r.value for r in records}
    assert recalls["codes: scan", "recall_at_1_new"] == 1
    assert recalls["codes: inverted lists", "recall_at_1_known"] > 0.9
