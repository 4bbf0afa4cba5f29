from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
import pytest

from keynet.cache import scope_codes
from keynet.cache.scope_codes import Found, ScopeCodes
from keynet.hashing import cpu

BITS, DIM = 64, 2
nearest = cpu.nearest


def code(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, BITS // 8, dtype=np.uint8)


def rows(numbers: range) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries with the codes of their numbers, and vectors that say it."""
    ids = np.array(numbers, np.int64)
    return ids, np.stack([code(n) for n in numbers]), np.tile(ids[:, None] % 2000, (1, DIM))


def filled(count: int, write_lock: threading.Lock | None = None) -> ScopeCodes:
    codes = ScopeCodes(BITS, DIM, write_lock or threading.Lock())
    codes.reserve(count)
    codes.extend(*rows(range(count)))
    return codes


def ask(codes: ScopeCodes, number: int, num_candidates: int = 1, radius: int = BITS) -> Found:
    return codes.nearest(code(number)[None], num_candidates, radius)


def interrupted(monkeypatch: pytest.MonkeyPatch, *happens: Callable[[], object]) -> list[int]:
    """Let something happen after each scan, before its result is looked at; count the scans."""
    steps, scans = list(happens), []

    def scan(*args: object) -> object:
        found = nearest(*args)
        scans.append(1)
        if steps:
            steps.pop(0)()
        return found

    monkeypatch.setattr(scope_codes, "nearest", scan)
    return scans


def test_the_nearest_with_what_is_stored() -> None:
    found = filled(50).nearest(np.stack([code(7), code(8)]), 3, BITS)
    assert found.distances.shape == found.entries.shape == (2, 3)
    assert found.entries[:, 0].tolist() == [7, 8]
    assert found.vectors[:, 0].tolist() == [[7, 7], [8, 8]]
    assert (np.diff(found.distances, axis=1) >= 0).all()


def test_more_than_there_are() -> None:
    assert sorted(ask(filled(5), 1, num_candidates=99).entries[0].tolist()) == list(range(5))
    assert ask(ScopeCodes(BITS, DIM, threading.Lock()), 1, 3).entries.shape == (1, 0)


def test_what_is_beyond_the_radius_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, everything = filled(50), ask(filled(50), 99, 50)
    for radius in (0, 20, 30, BITS):
        found = ask(codes, 99, 50, radius)
        inside = int((everything.distances <= radius).sum())
        assert found.vectors.shape == (1, inside, DIM)
        assert np.array_equal(found.entries[0], everything.entries[0, :inside])
    both = codes.nearest(np.stack([code(99), code(7)]), 50, 0)
    assert both.entries.shape == (2, 1) and both.entries[1, 0] == 7


def test_a_scan_during_which_a_slot_changed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = filled(3)
    # Entry 2 moves to the slot of 0. The scan's answer, slot 2, is no entry any more.
    scans = interrupted(monkeypatch, lambda: codes.remove(0))
    found = ask(codes, 2)
    assert (found.entries[0, 0], found.distances[0, 0]) == (2, 0)
    assert len(scans) == 2


def test_a_slot_taken_by_another_entry_is_not_mistaken(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = filled(3)

    def swap() -> None:
        codes.remove(2)
        codes.reserve(1)
        codes.extend(*rows(range(9, 10)))

    interrupted(monkeypatch, swap)
    found = ask(codes, 2)
    assert found.entries[0, 0] in (0, 1, 9)  # 2 is gone
    assert found.distances[0, 0] == np.bitwise_count(code(2) ^ code(found.entries[0, 0])).sum()


def test_a_scan_during_which_slots_came_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = filled(3)

    def append() -> None:
        codes.reserve(100)
        codes.extend(*rows(range(3, 103)))

    scans = interrupted(monkeypatch, append)
    assert ask(codes, 2).entries[0, 0] == 2
    assert len(scans) == 1


def test_the_last_scan_keeps_writers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, blocked = filled(3), []

    def write() -> None:
        thread = threading.Thread(target=lambda: codes.replace(0, code(50), np.zeros(DIM)))
        thread.start()
        thread.join(0.05)
        blocked.append(thread.is_alive())
        threads.append(thread)

    threads: list[threading.Thread] = []
    scans = interrupted(monkeypatch, *[write] * 9)
    assert ask(codes, 2).entries[0, 0] == 2
    assert len(scans) == scope_codes.TRIES
    assert blocked == [False] * (scope_codes.TRIES - 1) + [True]
    for thread in threads:
        thread.join()


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(scope_codes, "LISTS_FROM", 500)


def same_as_a_scan(codes: ScopeCodes, numbers: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every code that is there is found at distance 0, and what is gone is not."""
    listed = {n: (f.entries[0, 0], f.distances[0, 0]) for n in numbers for f in [ask(codes, n)]}
    with monkeypatch.context() as patch:
        patch.setattr(scope_codes, "LISTS_UP_TO", 0)
        for number, (entry, distance) in listed.items():
            found = ask(codes, number)
            if found.distances[0, 0] == 0:
                assert (entry, distance) == (found.entries[0, 0], 0)
            else:
                assert distance > 0


def test_many_codes_are_searched_in_lists(lists: None, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = filled(800)
    codes.grown()
    codes.join()
    assert codes.approximate
    scans = interrupted(monkeypatch)
    assert ask(codes, 5).entries[0, 0] == 5
    assert not scans
    # A scan when many are wanted, since lists would miss some.
    assert len(ask(codes, 5, num_candidates=700).entries[0]) == 700
    assert len(scans) == 1


def test_lists_follow_changes(lists: None, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = filled(800)
    codes.grown()
    codes.join()
    codes.reserve(100)
    codes.extend(*rows(range(800, 900)))
    codes.replace(3, code(5000), np.zeros(DIM))
    assert codes.remove(10) == 899
    assert codes.remove(898) is None
    assert len(codes) == 898
    assert ask(codes, 5000).entries[0, 0] == 3
    assert ask(codes, 899).entries[0, 0] == 899
    assert codes.remove(10) == 897  # entry 899, which had moved there
    assert ask(codes, 899).distances[0, 0] > 0
    same_as_a_scan(codes, range(900), monkeypatch)


def test_a_search_in_lists_keeps_writers_out(lists: None, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, blocked = filled(600), []
    codes.grown()
    codes.join()
    search = codes._lists.search

    def interrupted_search(*args: object) -> object:
        found = search(*args)
        writer.start()
        writer.join(0.1)
        blocked.append(writer.is_alive())
        return found

    writer = threading.Thread(target=lambda: codes.remove(7))
    monkeypatch.setattr(codes._lists, "search", interrupted_search)
    assert ask(codes, 7).entries[0, 0] == 7
    writer.join()
    assert blocked == [True]
    monkeypatch.undo()
    assert ask(codes, 7).distances[0, 0] > 0


def test_lists_that_find_too_few_are_not_believed(
    lists: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keynet.cache.inverted_lists.NPROBE", 1)
    codes = filled(800)
    codes.grown()
    codes.join()
    scans = interrupted(monkeypatch)
    assert len(set(ask(codes, 5, num_candidates=200).entries[0].tolist())) == 200
    assert len(scans) == 1


def test_what_changes_during_a_build_is_taken_up(
    lists: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock, begun, go_on = threading.Lock(), threading.Event(), threading.Event()
    real = scope_codes.InvertedLists

    def slow(*args: object) -> object:
        begun.set()
        assert go_on.wait(10)
        return real(*args)

    monkeypatch.setattr(scope_codes, "InvertedLists", slow)
    codes = filled(600, write_lock)
    codes.grown()
    assert begun.wait(10)
    with write_lock:
        codes.reserve(700)
        codes.extend(*rows(range(600, 1300)))  # more than is taken up at once
        codes.replace(3, code(5000), np.zeros(DIM))
        codes.remove(10)
        codes.remove(1298)
        codes.grown()  # one build at a time
    assert not codes.approximate
    assert ask(codes, 5000).entries[0, 0] == 3  # scanned meanwhile
    go_on.set()
    codes.join()
    assert codes.approximate
    assert ask(codes, 5000).entries[0, 0] == 3
    same_as_a_scan(codes, range(1300), monkeypatch)


def test_lists_go_when_few_are_left(lists: None) -> None:
    codes = filled(600)
    codes.grown()
    codes.join()
    for _ in range(351):
        codes.remove(0)
    assert not codes.approximate
    assert len(codes) == 249
    for number in (1, 249):
        assert ask(codes, number).distances[0, 0] == 0


def test_lists_are_made_anew_for_twice_as_many(lists: None) -> None:
    codes = filled(500)
    codes.grown()
    codes.join()
    first = codes._lists
    codes.reserve(600)
    codes.extend(*rows(range(500, 900)))
    codes.grown()
    codes.join()
    assert codes._lists is first
    codes.extend(*rows(range(900, 1100)))
    codes.grown()
    codes.join()
    assert codes._lists is not first
    assert ask(codes, 1050).entries[0, 0] == 1050


def test_a_build_that_fails_is_said_and_scanning_goes_on(
    lists: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: object) -> None:
        raise MemoryError("no room\nfor lists")

    monkeypatch.setattr(scope_codes, "InvertedLists", fails)
    codes = filled(600)
    with caplog.at_level(logging.WARNING):
        codes.grown()
        codes.join()
    assert "could not be built (no room for lists): scanning goes on" in caplog.text
    assert ask(codes, 7).entries[0, 0] == 7
    codes.remove(0)
    codes.grown()  # not again at once
    codes.join()
    assert len(caplog.records) == 1


class NoCopy(np.ndarray):
    def copy(self, order: str = "C") -> np.ndarray:
        raise MemoryError("no more")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("what", ["copy", "thread", "build"])
def test_a_build_that_fails_does_not_keep_others_off(
    lists: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    def fails(*args: object) -> None:
        raise KeyError if what == "build" else RuntimeError("no more")

    codes = filled(600)
    with monkeypatch.context() as patch:
        if what == "copy":
            patch.setattr(codes._slots, "codes", codes._slots.codes.view(NoCopy))
        elif what == "thread":
            patch.setattr(threading.Thread, "start", fails)
        else:
            patch.setattr(scope_codes, "InvertedLists", fails)
        codes.grown()
        codes.join()
    assert what == "build" or "could not be built (no more): scanning goes on" in caplog.text
    assert not codes.approximate
    codes.reserve(700)
    codes.extend(*rows(range(600, 1300)))
    codes.grown()
    codes.join()
    assert codes.approximate


@pytest.mark.parametrize("error", [None, MemoryError, scope_codes.StoppedError])
def test_a_build_ends_between_writes(
    lists: None, monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    """A writer who has seen that one is on may note what it changed."""
    write_lock, go_on, ended = threading.Lock(), threading.Event(), threading.Event()
    real = scope_codes.InvertedLists

    def build(*args: object) -> object:
        assert go_on.wait(10)
        ended.set()
        if error is not None:
            raise error
        return real(*args)

    monkeypatch.setattr(scope_codes, "InvertedLists", build)
    codes = filled(600, write_lock)
    codes.grown()
    with write_lock:
        go_on.set()
        assert ended.wait(10)
        codes._build.join(0.1)
        assert codes._touched is not None
    codes.join()
    assert codes._touched is None


def test_lists_that_cannot_be_kept_up_are_left(
    lists: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    codes = filled(600)
    codes.grown()
    codes.join()

    def fails(*args: object) -> None:
        raise RuntimeError("faiss says no")

    monkeypatch.setattr(codes._lists, "update", fails)
    codes.replace(3, code(5000), np.zeros(DIM))
    assert not codes.approximate
    assert "(faiss says no): scanning instead" in caplog.text
    assert ask(codes, 5000).entries[0, 0] == 3


def test_a_build_that_is_stopped_ends(lists: None) -> None:
    codes = filled(600)
    codes.stop()
    codes.grown()
    codes.join()
    assert not codes.approximate
    assert ask(codes, 7).entries[0, 0] == 7


def test_without_faiss_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with_faiss = [ask(filled(300), number, 9) for number in range(20)]
    for module in (cpu, scope_codes):
        monkeypatch.setattr(module, "faiss", lambda: None)
    monkeypatch.setattr("keynet.cache.inverted_lists.faiss", lambda: None)
    monkeypatch.setattr(scope_codes, "LISTS_FROM", 100)
    codes = filled(300)
    codes.grown()
    assert not codes.approximate
    for number, found in enumerate(with_faiss):
        for one, other in zip(found, ask(codes, number, 9), strict=True):
            assert np.array_equal(one, other)
