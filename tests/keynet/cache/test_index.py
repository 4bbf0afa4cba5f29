from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache import index as index_module
from keynet.cache import scope_codes
from keynet.cache.index import CodeIndex, CodeIndexError, Neighbour
from keynet.types import Key, KeySpace

Make = Callable[..., Key]


def filled(space: KeySpace, key: Make, count: int) -> CodeIndex:
    index = CodeIndex(space)
    index.insert_many(range(count), [key(n) for n in range(count)])
    return index


def expected(model: dict[int, Key], asked: Key, scopes: set[str]) -> list[Neighbour]:
    """All entries of the scopes by cosine, computed one by one."""
    found = []
    for entry, key in model.items():
        if key.scope_digest in scopes:
            kept = key.vector.astype(np.float16).astype(np.float64)
            cosine = float(kept @ asked.vector / np.linalg.norm(kept))
            distance = int(np.bitwise_count(key.code ^ asked.code).sum())
            found.append(Neighbour(entry, distance, cosine))
    return sorted(found, key=lambda n: (-n.cosine, n.entry))


def assert_same(found: list[Neighbour], wanted: list[Neighbour]) -> None:
    assert [n[:2] for n in found] == [n[:2] for n in wanted]
    np.testing.assert_allclose([n.cosine for n in found], [n.cosine for n in wanted], atol=1e-6)


STEP = st.tuples(
    st.sampled_from(["insert", "insert", "insert", "replace", "remove", "search"]),
    st.integers(0, 30),  # entry
    st.integers(0, 200),  # key
    st.integers(0, 2),  # scope
)


@settings(max_examples=80, deadline=None)
@given(st.lists(STEP, max_size=50), st.integers(0, 64), st.integers(1, 8))
def test_an_index_is_a_dict_searched_one_by_one(
    space: KeySpace, key: Make, steps: list, radius: int, k: int
) -> None:
    index, model = CodeIndex(space), {}
    for what, entry, number, scope in steps:
        given_key = key(number, scope)
        if what == "search":
            scopes = {given_key.scope_digest, key(0, 1).scope_digest}
            for kind in (None, scopes):
                all_of = expected(model, given_key, kind or {given_key.scope_digest})
                inside = [n for n in all_of if n.distance <= radius]
                assert_same(index.search(given_key, 99, scopes=kind), all_of)
                assert_same(index.search(given_key, k, radius, scopes=kind), inside[:k])
        elif what == "insert" and entry not in model:
            index.insert(entry, given_key)
            model[entry] = given_key
        elif what != "insert" and entry in model:
            if what == "replace":
                index.replace(entry, given_key)
                model[entry] = given_key
            else:
                index.remove(entry)
                del model[entry]
        else:
            with pytest.raises(CodeIndexError):
                getattr(index, what)(*([entry] if what == "remove" else [entry, given_key]))
        assert len(index) == len(model)
        assert (entry in index) == (entry in model)
    for entry, stored in model.items():
        nearest = index.search(stored, 99, radius=0)
        assert (entry, 0) in [n[:2] for n in nearest]


def test_candidates_are_the_nearest_codes(space: KeySpace, key: Make) -> None:
    index, asked = filled(space, key, 200), key(1000)
    all_of = expected({n: key(n) for n in range(200)}, asked, {asked.scope_digest})
    edge = sorted(n.distance for n in all_of)[9]
    found = index.search(asked, 5, candidates=10)
    inside = [n for n in all_of if n.distance < edge]
    assert max(n.distance for n in found) <= edge
    assert found[0].cosine >= inside[0].cosine - 1e-6
    # With one candidate the code alone decides.
    assert index.search(asked, candidates=1)[0].distance == min(n.distance for n in all_of)
    # k of them at least.
    assert len(index.search(asked, 50, candidates=1)) == 50


def test_several_scopes_share_the_candidates(space: KeySpace, key: Make) -> None:
    index = CodeIndex(space)
    index.insert_many(range(90), [key(n, n % 3) for n in range(90)])
    asked = key(500, 0)
    digests = [key(0, scope).scope_digest for scope in (0, 1, 2)]
    model = {n: key(n, n % 3) for n in range(90)}
    nearest = sorted(n.distance for n in expected(model, asked, set(digests)))
    found = index.search(asked, 20, candidates=20, scopes=digests)
    assert sorted(n.distance for n in found) == nearest[:20]
    assert_same(index.search(asked, 99, scopes=digests), expected(model, asked, set(digests)))
    assert_same(
        index.search(asked, 99, scopes=[digests[1]] * 2 + ["0" * 32]),
        expected(model, asked, {digests[1]}),
    )
    assert index.search(asked, scopes=[]) == []


def test_ties_are_broken_by_entry(space: KeySpace, key: Make) -> None:
    index = CodeIndex(space)
    entries = np.random.default_rng(0).permutation(23).tolist()
    index.insert_many(entries, [key(7)] * 23)
    assert [n.entry for n in index.search(key(7), 23)] == list(range(23))
    assert index.search(key(7), 1)[0] == Neighbour(0, 0, pytest.approx(1, abs=1e-6))


def test_nothing_there(space: KeySpace, key: Make) -> None:
    index = CodeIndex(space)
    assert index.search(key(1), 5) == []
    assert index.search_many([], 5) == []
    index.insert(1, key(1))
    assert index.search(key(1, scope=5)) == []
    assert [n.entry for n in index.search(key(1), k=1000)] == [1]
    index.remove(1)
    assert index.search(key(1)) == []
    assert len(index) == 0 and index._scopes == {} and index._numbered == {}


def test_many_searches_are_as_each_alone(space: KeySpace, key: Make) -> None:
    index = CodeIndex(space)
    index.insert_many(range(300), [key(n, n % 3) for n in range(300)])
    asked = [key(n, n % 4) for n in range(400, 550)]
    assert index.search_many(asked, 3, 30) == [index.search(one, 3, 30) for one in asked]


def test_replace_into_another_scope(space: KeySpace, key: Make) -> None:
    index = filled(space, key, 3)
    index.replace(0, key(50, scope=1))
    assert index.search(key(50, scope=1)) == [Neighbour(0, 0, pytest.approx(1, abs=1e-6))]
    assert sorted(n.entry for n in index.search(key(0), 9)) == [1, 2]
    assert len(index) == 3 and 0 in index
    index.remove(0)
    index.remove(2)  # swapped into the slot of 0 before
    assert [n.entry for n in index.search(key(0), 9)] == [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i, k: i.insert(1, k), "entry 1 is in the index; replace it, or remove it"),
        (lambda i, k: i.insert(-1, k), "entry is -1; expected 0"),
        (lambda i, k: i.insert("a", k), "entry is 'a'; expected a whole number"),
        (lambda i, k: i.insert_many([5, 6, 5], [k, k, k]), "entry 5 is given twice"),
        (lambda i, k: i.insert_many([5, 1], [k, k]), "entry 1 is in the index"),
        (lambda i, k: i.insert_many([5], [k, k]), "1 entries and 2 keys; give one for each"),
        (lambda i, k: i.replace(9, k), "entry 9 is not in the index; replace what was inserted"),
        (lambda i, k: i.remove(9), "entry 9 is not in the index; remove what was inserted"),
        (lambda i, k: i.search(k, 0), "k=0: expected at least 1"),
        (lambda i, k: i.search(k, candidates=0), "candidates=0: expected at least 1"),
        (lambda i, k: i.search(k, radius=-1), "radius=-1: expected 0 to 64"),
        (lambda i, k: i.search(k, radius=65), "radius=65: expected 0 to 64"),
        (lambda i, k: i.search(k, scopes="0" * 32), "expected several digests"),
        (lambda i, k: i.search(k, scopes=5), r"scopes=5: expected several digests; give \[5\]"),
        (lambda i, k: i.search(k, 1.5), r"k=1\.5: expected a whole number, at least 1"),
        (lambda i, k: i.search(k, candidates="9"), "candidates='9': expected a whole number"),
        (
            lambda i, k: i.search(k, radius=3.0),
            r"radius=3\.0: expected a whole number, 0 to 64, or",
        ),
        (lambda i, k: i.insert_many(iter([7]), [k]), "entries is list_iterator; expected a list"),
        (lambda i, k: i.insert_many([7], iter([k])), "keys is list_iterator; expected a list"),
        (lambda i, k: i.search_many(k), "keys is Key; expected a list of keys"),
        (lambda i, k: i.search(k, scopes=["tenant"]), "scope digest is 'tenant'"),
        (lambda i, k: i.search(replace(k, vector=0 * k.vector)), "norm 0"),
        (lambda i, k: i.insert(7, replace(k, vector=np.nan * k.vector)), "norm nan"),
        (lambda i, k: i.replace(1, replace(k, code=k.code[:4])), r"code uint8 \[4\]"),
        (
            lambda i, k: i.insert(7, replace(k, space=replace(k.space, fingerprint="x"))),
            "two key spaces cannot be compared",
        ),
        (
            lambda i, k: i.search(replace(k, space=replace(k.space, version=2))),
            "two key spaces cannot be compared",
        ),
    ],
)
def test_what_an_index_cannot_take(
    space: KeySpace, key: Make, call: Callable[[CodeIndex, Key], None], message: str
) -> None:
    index = filled(space, key, 3)
    with pytest.raises(ValueError, match=message) as caught:
        call(index, key(1))
    assert "\n" not in str(caught.value)
    assert_same(
        index.search(key(1), 9),
        expected({n: key(n) for n in range(3)}, key(1), {key(1).scope_digest}),
    )
    assert len(index) == 3


@pytest.mark.parametrize(
    "change", [{"bits": 96}, {"bits": 65}, {"bits": 0}, {"dim": 0}, {"bits": 64.0}, {"dim": 16.0}]
)
def test_spaces_without_codes(space: KeySpace, change: dict) -> None:
    with pytest.raises(CodeIndexError, match="expected bits one of"):
        CodeIndex(replace(space, **change))


def test_a_closed_index(space: KeySpace, key: Make) -> None:
    with filled(space, key, 3) as index:
        pass
    index.close()
    for call in (
        lambda: index.insert(9, key(9)),
        lambda: index.replace(1, key(9)),
        lambda: index.remove(1),
        lambda: index.search(key(1)),
        index.flush,
    ):
        with pytest.raises(CodeIndexError, match="index is closed; open it again"):
            call()


def test_memory_is_counted(space: KeySpace, key: Make) -> None:
    index = filled(space, key, 2000)
    a_row = space.bits // 8 + 2 * space.dim + 8
    assert a_row + 64 < index.memory_bytes / 2000 < a_row + 250


def test_memory_of_scopes_of_one_entry_is_counted(space: KeySpace, key: Make) -> None:
    index, count = CodeIndex(space), 3000
    keys = [key(n, n) for n in range(count)]
    tracemalloc.start()
    for number, one in enumerate(keys):
        index.insert(number, one)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.8 < index.memory_bytes / grown < 1.7  # locks and malloc's own are not traced
    assert index.memory_bytes < 1600 * count


@pytest.mark.parametrize("radius", [None, 0])
def test_neighbours_of_all_entries_are_gathered_in_parts(
    space: KeySpace, key: Make, monkeypatch: pytest.MonkeyPatch, radius: int | None
) -> None:
    """64 queries for everything would copy every vector 64 times."""
    monkeypatch.setattr(index_module, "CANDIDATES_AT_ONCE", 500)
    index, gathered, real = filled(space, key, 200), [], scope_codes.ScopeCodes._gather

    def gather(*args: object) -> object:
        found = real(*args)
        gathered.append(found.vectors.shape[:2])
        return found

    monkeypatch.setattr(scope_codes.ScopeCodes, "_gather", gather)
    found = index.search_many([key(n) for n in range(64)], 10**6, radius)
    assert [len(some) for some in found] == [1 if radius == 0 else 200] * 64
    assert set(gathered) == {(2, 1 if radius == 0 else 200)}


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_an_insert_is_done_though_lists_cannot_be_built(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    content: Callable,
    reopened: Callable,
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(scope_codes, "LISTS_FROM", 20)

    def fails(*args: object) -> None:
        raise error

    with CodeIndex(space, tmp_path) as index:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fails)
            index.insert_many(range(60), [key(n, n % 2) for n in range(60)])
            index.replace(0, key(99, 1))
        kept = content(index)
        assert len(kept) == 60
    assert reopened(tmp_path) == kept


@pytest.mark.parametrize("lists_from", [10**9, 300])
def test_threads(
    space: KeySpace, key: Make, lists_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that stay are found throughout, and what is found is what was stored."""
    if lists_from < 10**9:
        pytest.importorskip("faiss")
    monkeypatch.setattr(scope_codes, "LISTS_FROM", lists_from)
    index = CodeIndex(space)
    staying = {n: key(n) for n in range(0, 800, 2)}
    passing = {n: key(n) for n in range(1, 800, 2)}
    index.insert_many(list(range(800)), [key(n) for n in range(800)])
    stop, errors = time.monotonic() + 1.5, []
    counts = {"searches": 0, "changes": 0}

    def guarded(work: Callable[[np.random.Generator], None], seed: int) -> threading.Thread:
        def loop() -> None:
            random = np.random.default_rng(seed)
            try:
                while time.monotonic() < stop and not errors:
                    work(random)
            except BaseException as error:
                errors.append(error)

        return threading.Thread(target=loop)

    def search(random: np.random.Generator) -> None:
        entry = int(random.integers(0, 400)) * 2
        found = index.search(staying[entry], 3, radius=20)
        assert entry in [n.entry for n in found]
        for entry_found, distance, cosine in found:
            stored = staying.get(entry_found) or passing[entry_found]
            assert distance == np.bitwise_count(stored.code ^ staying[entry].code).sum()
            kept = stored.vector.astype(np.float16).astype(np.float32)
            cos = kept @ staying[entry].vector / np.linalg.norm(kept)
            assert abs(cosine - cos) < 1e-5
        counts["searches"] += 1

    def change(entries: list[int]) -> Callable[[np.random.Generator], None]:
        def work(random: np.random.Generator) -> None:
            entry = entries[random.integers(len(entries))]
            if entry in index:
                index.remove(entry)
            else:
                index.insert(entry, passing[entry])
            counts["changes"] += 1

        return work

    entries = sorted(passing)
    threads = [guarded(search, 1), guarded(search, 2)]
    threads += [guarded(change(entries[::2]), 3), guarded(change(entries[1::2]), 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert min(counts.values()) > 100
    index.settle()
    assert index.approximate(key(0).scope_digest) == (lists_from < 10**9)
    index.close()


def test_an_entry_that_is_replaced_is_its_old_or_its_new_self(space: KeySpace, key: Make) -> None:
    index, stop, errors = filled(space, key, 300), time.monotonic() + 0.7, []
    selves = [key(0), key(1000)]

    def turn() -> None:
        number = 0
        while time.monotonic() < stop:
            number += 1
            index.replace(0, selves[number % 2])

    thread = threading.Thread(target=turn)
    thread.start()
    while time.monotonic() < stop:
        for own in selves:
            for found in index.search(own, 1, radius=0):
                if (found.entry, found.distance) != (0, 0) or found.cosine < 0.9999:
                    errors.append(found)
    thread.join()
    assert errors == []
