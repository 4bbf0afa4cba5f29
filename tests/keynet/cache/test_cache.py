from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import CacheError, Hit, Miss, SemanticCache
from keynet.types import Key

Make = Callable[..., Key]
BOTH = "image+text"


def test_what_is_stored_is_served_to_its_own_scope_alone(maker: Any) -> None:
    with maker.opened(None) as cache:
        miss = cache.lookup(maker.request(1, tenant=1))
        assert isinstance(miss, Miss) and miss.nearest is None
        entry = cache.insert(miss, {"text": "a cat"}, cost=2.5)
        hit = cache.lookup(maker.request(1, tenant=1))
        assert isinstance(hit, Hit) and hit.entry.number == entry.number
        assert (hit.response, hit.similarity, hit.entry.cost) == ({"text": "a cat"}, 1.0, 2.5)
        assert isinstance(cache.lookup(maker.request(1, tenant=2)), Miss)
        assert isinstance(cache.lookup(maker.request(2, tenant=1)), Miss)
        stats = cache.stats()
        assert (stats.entries, stats.lookups, stats.hits, stats.inserts) == (1, 4, 1, 1)
        assert stats.hit_rate == 0.25


def test_the_nearest_is_served_from_the_threshold_on(maker: Any, key: Make) -> None:
    base = key(1)
    side = np.zeros_like(base.vector)
    side[0], side[1] = -base.vector[1], base.vector[0]
    side /= np.linalg.norm(side)

    def at(cosine: float) -> Key:
        vector = cosine * base.vector + np.sqrt(1 - cosine**2) * side
        return replace(base, vector=(vector / np.linalg.norm(vector)).astype(np.float32))

    cache = SemanticCache(None, maker, acceptance=FixedThreshold(0.9))
    with cache:
        for cosine in (0.5, 0.8):
            cache.insert(Miss(at(cosine), BOTH, ()), cosine)
        miss = cache.lookup_key(base, BOTH)
        assert isinstance(miss, Miss) and miss.nearest == pytest.approx(0.8, abs=1e-6)
        cache.insert(Miss(at(0.95), BOTH, ()), 0.95)
        hit = cache.lookup_key(base, BOTH)
        assert isinstance(hit, Hit) and hit.response == 0.95
        assert hit.similarity == pytest.approx(0.95, abs=1e-6)


def test_nothing_is_served_without_a_threshold(maker: Any) -> None:
    with SemanticCache(None, maker, acceptance=FixedThreshold(None)) as cache:
        maker.stored(cache, 1)
        assert isinstance(cache.lookup(maker.request(1)), Miss)


@pytest.mark.parametrize("response", ["text", b"\x00bytes", {"a": [1, 2.5, None, True]}, "", b""])
def test_a_response_comes_back_as_it_is(maker: Any, tmp_path: Path, response: Any) -> None:
    with maker.opened(tmp_path / "c") as cache:
        cache.insert(maker.request(1), response)
    with maker.opened(tmp_path / "c") as cache:
        hit = cache.lookup(maker.request(1))
        assert isinstance(hit, Hit)
        assert type(hit.response) is type(response) and hit.response == response


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ({1, 2}, "set and cannot be stored"),
        ((1, 2), "tuple and JSON would change it"),
        ({"a": (1,)}, "JSON would change it"),
        ({1: "a"}, "JSON would change it"),
        (float("nan"), "cannot be stored"),
        ("\ud800", "lone surrogate"),
        (np.zeros(2), "ndarray and cannot be stored"),
    ],
)
def test_a_response_that_would_not_come_back_is_refused(
    maker: Any, response: Any, said: str
) -> None:
    with maker.opened(None) as cache:
        with pytest.raises(CacheError, match=said):
            cache.insert(maker.request(1), response)
        assert len(cache) == 0 and isinstance(cache.lookup(maker.request(1)), Miss)


def test_the_very_same_key_is_replaced(maker: Any) -> None:
    with maker.opened(None) as cache:
        first, second = maker.stored(cache, 1, "old"), maker.stored(cache, 1, "new")
        assert len(cache) == 1 and second.number > first.number
        hit = cache.lookup(maker.request(1))
        assert isinstance(hit, Hit) and hit.response == "new"


def test_budgets_hold_and_the_last_used_stays(maker: Any) -> None:
    with maker.opened(None, max_entries=3) as cache:
        for number in range(3):
            maker.stored(cache, number)
        assert isinstance(cache.lookup(maker.request(0)), Hit)
        maker.stored(cache, 3)
        there = [n for n in range(4) if isinstance(cache.lookup(maker.request(n)), Hit)]
        assert there == [0, 2, 3] and cache.stats().evictions == 1
    size = maker.stored(maker.opened(None), 1, "x" * 100).nbytes
    with maker.opened(None, max_bytes=3 * size) as cache:
        for number in range(5):
            maker.stored(cache, number, "x" * 100)
            assert cache.stats().nbytes <= 3 * size
        assert len(cache) == 3
        assert cache.insert(maker.request(9), "x" * 10 * size) is None
        assert len(cache) == 3 and cache.stats().too_large == 1


def test_time(maker: Any, new_clock: Callable) -> None:
    clock = new_clock()
    with maker.opened(None, ttl=10.0, clock=clock) as cache:
        maker.stored(cache, 1)
        cache.insert(maker.request(2), "long", ttl=100.0)
        clock.now += 9
        assert isinstance(cache.lookup(maker.request(1)), Hit)
        clock.now += 1
        assert isinstance(cache.lookup(maker.request(1)), Miss)
        assert isinstance(cache.lookup(maker.request(2)), Hit)
        clock.now -= 1000  # what expired stays so, and what did not is still there
        assert isinstance(cache.lookup(maker.request(1)), Miss)
        assert isinstance(cache.lookup(maker.request(2)), Hit)
        maker.stored(cache, 3)
        assert cache.stats().expired == 1 and len(cache) == 2


def test_expired_entries_do_not_hide_a_living_one(
    maker: Any, key: Make, new_clock: Callable
) -> None:
    clock, base = new_clock(), key(1)
    noise = np.random.default_rng(0).standard_normal((9, maker.space.dim)).astype(np.float32) * 0.01
    vectors = base.vector + noise * np.linspace(0.1, 1, 9, dtype=np.float32)[:, None]
    keys = [replace(base, vector=v / np.linalg.norm(v)) for v in vectors]
    cache = SemanticCache(None, maker, acceptance=FixedThreshold(0.9), clock=clock)
    with cache:
        for number, one in enumerate(keys):
            cache.insert(Miss(one, BOTH, ()), number, ttl=None if number == 8 else 1.0)
        clock.now += 2
        hit = cache.lookup_key(base, BOTH)
        assert isinstance(hit, Hit) and hit.response == 8


def test_raising_a_version_reaches_its_entries_alone(maker: Any) -> None:
    with maker.opened(None) as cache:
        for number in range(6):
            maker.stored(cache, number, scene=f"s{number % 2}", user=f"u{number % 3}")

        def there() -> list[int]:
            found = [
                cache.lookup(maker.request(n, scene=f"s{n % 2}", user=f"u{n % 3}"))
                for n in range(6)
            ]
            return [n for n, one in enumerate(found) if isinstance(one, Hit)]

        assert there() == [0, 1, 2, 3, 4, 5]
        assert cache.raise_version("scene", "s1") == 1
        assert there() == [0, 2, 4] and len(cache) == 6
        assert cache.raise_version("user", "u0", sweep=True) == 1
        assert there() == [2, 4] and len(cache) == 4  # 0 and 3 are gone, 1 and 5 not yet
        maker.stored(cache, 1, scene="s1", user="u1")
        assert there() == [1, 2, 4] and len(cache) == 3 and cache.stats().outdated == 4
        cache.raise_version("key_space", maker.space.fingerprint)
        assert there() == []


def test_an_answer_to_a_miss_from_before_a_raise_is_not_stored(maker: Any) -> None:
    with maker.opened(None) as cache:
        late, other = (
            cache.lookup(maker.request(1, scene="a")),
            cache.lookup(maker.request(2, scene="b")),
        )
        cache.raise_version("scene", "a")
        assert isinstance(late, Miss) and cache.insert(late, "before") is None
        assert isinstance(other, Miss) and cache.insert(other, "fine") is not None
        assert isinstance(cache.lookup(maker.request(1, scene="a")), Miss)
        assert cache.stats().too_late == 1


def test_two_key_spaces_in_one_cache(maker: Any, key: Make, tmp_path: Path) -> None:
    other = replace(maker.space, name="other", fingerprint="beef")
    makers = [maker, type(maker)(other)]
    options: dict[str, Any] = {
        "acceptance": FixedThreshold(0.99), "assign": lambda one: int(one.text) % 2
    }  # fmt: skip
    with SemanticCache(tmp_path / "c", makers, **options) as cache:
        for number in range(4):
            maker.stored(cache, number)
    with SemanticCache(tmp_path / "c", makers, **options) as cache:
        assert all(isinstance(cache.lookup(maker.request(n)), Hit) for n in range(4))
        assert cache.stats("beef").hits == 2 == cache.stats("f00d").entries
        assert isinstance(cache.lookup_key(key(0, 0, other), "text"), Miss)
        cache.raise_version("key_space", "beef")
        assert [isinstance(cache.lookup(maker.request(n)), Hit) for n in range(4)] == [1, 0, 1, 0]
        with pytest.raises(CacheError, match=r"this cache holds toy \(f00d\), other \(beef\)"):
            cache.lookup_key(key(1, 0, replace(maker.space, fingerprint="0")), BOTH)
    with maker.opened(tmp_path / "c", max_entries=2) as cache:  # the other's are evicted too
        assert len(cache) == 2


def test_audits(maker: Any) -> None:
    seen: list[bool] = []

    class Rule(FixedThreshold):
        def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
            seen.append(equivalent)

    with SemanticCache(None, maker, acceptance=Rule(0.9), audit_share=0.3, seed=5) as cache:
        for number in range(3):
            maker.stored(cache, number)
        hits = [cache.lookup(maker.request(n % 3)) for n in range(300)]
        drawn = [hit for hit in hits if isinstance(hit, Hit) and hit.audit]
        assert 60 < len(drawn) < 120
        cache.report_audit(drawn[0], True)
        cache.report_audit(drawn[1], False)
        assert seen == [True, False] and len(cache) == 2
        assert (cache.stats().audits, cache.stats().false_hits) == (2, 1)
        undrawn = next(hit for hit in hits if isinstance(hit, Hit) and not hit.audit)
        with pytest.raises(CacheError, match="not drawn for an audit"):
            cache.report_audit(undrawn, True)


def test_a_false_hit_tightens_its_neighbourhood(maker: Any, key: Make, tmp_path: Path) -> None:
    base = key(1)

    def at(cosine: float, axis: int) -> Key:
        side = np.eye(maker.space.dim, dtype=np.float32)[axis]
        side = side - (side @ base.vector) * base.vector
        vector = cosine * base.vector + np.sqrt(1 - cosine**2) * side / np.linalg.norm(side)
        return replace(base, vector=vector.astype(np.float32))

    def again() -> SemanticCache:
        return SemanticCache(tmp_path / "c", maker, acceptance=FixedThreshold(0.8))

    with again() as cache:
        cache.insert(Miss(at(0.95, 2), BOTH, ()), "wrong")
        hit = cache.lookup_key(base, BOTH)
        assert isinstance(hit, Hit)
        cache.report_false_hit(hit)
        assert isinstance(cache.lookup_key(base, BOTH), Miss) and len(cache) == 0
        cache.insert(Miss(at(0.9, 3), BOTH, ()), "would be served elsewhere")
        assert isinstance(cache.lookup_key(base, BOTH), Miss)
    with again() as cache:
        assert isinstance(cache.lookup_key(base, BOTH), Miss)
        cache.insert(Miss(at(0.97, 4), BOTH, ()), "near enough")
        found = cache.lookup_key(base, BOTH)
        assert isinstance(found, Hit) and found.response == "near enough"
        cache.report_false_hit(found.entry.number)
        assert len(cache) == 1


STEP = st.tuples(
    st.sampled_from(["insert"] * 3 + ["lookup", "false", "raise", "wait", "open", "kill"]),
    st.integers(0, 7),
    st.integers(0, 1),
)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
def test_it_does_what_a_dict_would(
    maker: Any, new_clock: Callable, tmp_path_factory: pytest.TempPathFactory, steps: list
) -> None:
    folder, clock = tmp_path_factory.mktemp("c") / "c", new_clock()
    options: dict[str, Any] = {"ttl": 10.0, "clock": clock}
    cache, model = maker.opened(folder, **options), {}
    for count, (what, number, scene) in enumerate(steps):
        asked = maker.request(number, tenant=scene, scene=str(scene))
        if what == "insert":
            assert cache.insert(asked, count) is not None
            model[number, scene] = count, clock.now + 10
        elif what == "false":
            hit = cache.lookup(asked)
            if isinstance(hit, Hit):
                cache.report_false_hit(hit.entry.number)
            model.pop((number, scene), None)
        elif what == "raise":
            cache.raise_version("scene", str(scene), sweep=bool(number % 2))
            model = {at: one for at, one in model.items() if at[1] != scene}
        elif what == "wait":
            clock.now += number
        elif what == "open":
            cache.close()
            cache = maker.opened(folder, **options)
        elif what == "kill":  # the folder as it would be found
            copy = folder.parent / f"copy{count}"
            shutil.copytree(folder, copy)
            with maker.opened(copy, **options) as found:
                check(maker, found, model, clock)
        check(maker, cache, model, clock)
    cache.close()


def check(maker: Any, cache: SemanticCache, model: dict, clock: Any) -> None:
    for number in range(8):
        for scene in range(2):
            value, expires = model.get((number, scene), (None, 0.0))
            found = cache.lookup(maker.request(number, tenant=scene, scene=str(scene)))
            there = value is not None and clock.now < expires
            assert (found.response if isinstance(found, Hit) else None) == (
                value if there else None
            )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_entries": 0}, "max_entries is 0; expected 1 or more"),
        ({"max_bytes": 1.5}, "max_bytes is 1.5"),
        ({"ttl": 0}, "ttl is 0"),
        ({"ttl": float("nan")}, "ttl is nan"),
        ({"audit_share": 2}, "audit_share is 2"),
    ],
)
def test_settings_that_cannot_be(maker: Any, options: dict, said: str) -> None:
    with pytest.raises(CacheError, match=said):
        maker.opened(None, **options)


def test_a_bad_key_is_refused_before_anything_is_written(maker: Any, key: Make) -> None:
    with maker.opened(None) as cache:
        bad = replace(key(1), vector=np.full(16, np.nan, np.float32))
        for call in (
            lambda: cache.insert(Miss(bad, BOTH, ()), "x"),
            lambda: cache.lookup_key(bad, BOTH),
            lambda: cache.insert(cache.lookup_key(key(1), BOTH).key, "x"),  # type: ignore[arg-type]
            lambda: cache.insert(maker.request(1), "x", cost=-1),
            lambda: cache.insert(maker.request(1), "x", ttl=-1),
            lambda: cache.raise_version("tenant", "a"),
            lambda: cache.lookup(maker.request(1, scene=3)),
        ):
            with pytest.raises(ValueError, match="expected"):
                call()
        assert len(cache) == 0
