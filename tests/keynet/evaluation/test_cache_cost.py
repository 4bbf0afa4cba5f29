from __future__ import annotations

from pathlib import Path

from keynet.evaluation.cache_cost import _percentiles, cache_cost
from keynet.evaluation.records import Sheet
from keynet.types import KeySpace


def test_a_small_cache_has_all_figures(tmp_path: Path) -> None:
    said: list[str] = []
    space = KeySpace("clusters", 1, 64, 256, "abcd")
    records = cache_cost(space, 2000, 100.0, 1.0, 2, tmp_path, said.append)
    found = {record.metric: record for record in records}
    assert found["lookup_ms_p50"].n == 100 == found["hit_rate"].n - 100
    assert 0 < found["lookup_ms_p50"].value <= found["lookup_ms_p99"].value
    assert found["lookup_ms_p99"].value == found["lookup_ms_p99_of_all"].value  # one window
    assert 0.4 < found["hit_rate"].value < 0.6
    # Stored are the misses of the open loop, but not those of the warm-up.
    assert 2000 < found["restore_s"].n <= 2000 + 100
    assert found["disk_bytes_per_entry"].value > 64 * 4 + 400
    assert not list(tmp_path.iterdir())


def test_a_pause_spoils_one_window() -> None:
    times = [1.0] * 1000
    times[300:330] = [90.0] * 30
    sheet = Sheet("clusters", "bench", "entries_1", "cache", 64)
    found = {one.metric: one for one in _percentiles(sheet, "lookup_ms", times, 100, "so")}
    assert found["lookup_ms_p99"].value == 1.0
    assert found["lookup_ms_p99_of_all"].value == 90.0
    assert found["lookup_ms_p99"].note == "so; p99 is the median of 10 windows"
    assert [one.value for one in _percentiles(sheet, "insert_ms", [], 100, "so")] == [None]
