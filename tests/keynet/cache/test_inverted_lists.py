from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from keynet.cache import inverted_lists
from keynet.cache.inverted_lists import Guard, InvertedLists, StoppedError, num_lists, one_thread
from keynet.hashing.cpu import nearest

faiss = pytest.importorskip("faiss")


def clustered(count: int, seed: int = 0, bits: int = 256) -> np.ndarray:
    """Codes in groups of ten, a group's 4 % apart."""
    random = np.random.default_rng(seed)
    centres = random.integers(0, 2, (count // 10, bits), dtype=np.uint8).repeat(10, axis=0)
    return np.packbits(centres ^ (random.random(centres.shape) < 0.02), axis=1)


def built(codes: np.ndarray) -> InvertedLists:
    with one_thread():
        return InvertedLists(codes, lambda: False)


def test_everything_stored_is_found_at_distance_0() -> None:
    codes = clustered(3000)
    lists = built(codes)
    distances, slots = lists.search(codes, 1)
    assert len(lists) == 3000
    assert (distances == 0).all()
    assert np.array_equal(codes[slots[:, 0]], codes)


def test_most_of_the_nearest_are_found() -> None:
    codes = clustered(20_000)
    lists = built(codes)
    flips = np.random.default_rng(1).random((500, 256)) < 0.02
    queries = codes[::40] ^ np.packbits(flips, axis=1)
    exact, _ = nearest(queries.view(np.int32), codes.view(np.int32), 5)
    found, _ = lists.search(queries, 5)
    assert (found[:, 0] == exact[:, 0]).mean() > 0.99
    assert (found == exact).mean() > 0.98
    assert (found >= exact).all()


def test_slots_that_change_come_and_go() -> None:
    codes = clustered(1000)
    lists = built(codes)
    new = clustered(1000, seed=9)
    # Slot 3 gets another code, 998 moves to 5 since 999 was freed before, 1000 is past the end.
    lists.update([3, 5, 998, 999, 1000], np.array([3, 5]), np.stack([new[0], codes[998]]))
    assert len(lists) == 998
    _, slots = lists.search(np.stack([new[0], codes[998], codes[999]]), 1)
    assert slots[:2, 0].tolist() == [3, 5]
    assert slots[2, 0] not in (999, 998)
    lists.update([998], np.array([998]), new[1:2])
    lists.update([998], np.array([998]), new[1:2])  # again: nothing stands there twice
    assert len(lists) == 999
    distances, slots = lists.search(new[1:2], 2)
    assert slots[0, 0] == 998 and distances[0, 0] == 0 and distances[0, 1] > 0
    lists.update([998], np.empty(0, np.int64), np.empty((0, 32), np.uint8))
    assert lists.search(new[1:2], 1)[0][0, 0] > 0


def test_fewer_than_k_leave_places_empty() -> None:
    codes = clustered(100)
    _, slots = built(codes).search(codes[:1], 200)
    assert (slots == -1).any()


@pytest.mark.parametrize(("count", "lists"), [(0, 1), (1, 1), (300_000, 512), (1_000_000, 1024)])
def test_the_number_of_lists_grows_as_the_square_root(count: int, lists: int) -> None:
    assert num_lists(count) == lists


def test_building_stops_when_told() -> None:
    with pytest.raises(StoppedError):
        InvertedLists(clustered(1000), lambda: True)


def test_memory_counts_every_code() -> None:
    lists = built(clustered(1000))
    assert lists.nbytes == 1000 * (32 + 8 + inverted_lists.HASH_NODE)


def test_faiss_uses_one_thread_here_and_keeps_what_others_set() -> None:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    seen = []

    def look() -> None:
        seen.append(faiss.omp_get_max_threads())
        faiss.omp_set_num_threads(5)
        with one_thread():
            seen.append(faiss.omp_get_max_threads())
        seen.append(faiss.omp_get_max_threads())

    with one_thread():
        assert faiss.omp_get_max_threads() == 1
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert faiss.omp_get_max_threads() == 1
    assert faiss.omp_get_max_threads() == 3
    assert seen[1:] == [1, 5]
    faiss.omp_set_num_threads(before)


def test_torch_keeps_its_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            pass
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_guard_lets_in_readers_or_one_writer() -> None:
    guard, inside, worst, seen = Guard(), [0, 0], [], []
    stop = time.monotonic() + 0.5

    def read() -> None:
        while time.monotonic() < stop:
            with guard.reading():
                inside[0] += 1
                worst.append(inside[1])
                seen.append(inside[0])
                time.sleep(0.0005)
                inside[0] -= 1

    def write() -> None:
        while time.monotonic() < stop:
            with guard.writing():
                inside[1] += 1
                worst.append(inside[0] + inside[1] - 1)
                time.sleep(0.0002)
                inside[1] -= 1
            time.sleep(0.002)

    threads = [threading.Thread(target=f) for f in (read, read, read, write, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(worst) == 0
    assert max(seen) > 1


def test_a_guard_is_free_after_an_error() -> None:
    guard = Guard()
    with pytest.raises(KeyError), guard.writing():
        raise KeyError
    with pytest.raises(KeyError), guard.reading():
        raise KeyError
    with guard.writing():
        pass
