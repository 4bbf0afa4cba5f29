"""Store, index and budget in agreement, whatever happens between them."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keynet.cache.acceptance import FixedThreshold, PerModalities
from keynet.cache.cache import CacheError, Hit, Miss, SemanticCache
from keynet.cache.index import CodeIndex
from keynet.cache.key_maker import GivenKeys
from keynet.types import Key, KeySpace

Make = Callable[..., Key]
BOTH = "image+text"


def opened(folder: Path | None, *spaces: KeySpace, **options: Any) -> SemanticCache:
    rule = {"acceptance": FixedThreshold(0.9)} | options
    return SemanticCache(folder, [GivenKeys(space) for space in spaces], **rule)


def stored(cache: SemanticCache, key: Key, response: Any = "x", **options: Any) -> int:
    entry = cache.insert(Miss(key, BOTH, ()), response, **options)
    assert entry is not None
    return entry.number


def answer(cache: SemanticCache, key: Key) -> Any:
    found = cache.lookup_key(key, BOTH)
    return found.response if isinstance(found, Hit) else None


@pytest.fixture
def other(space: KeySpace) -> KeySpace:
    return replace(space, name="other", fingerprint="beef")


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "index cannot be written; free some space")


def test_one_key_of_two_key_spaces_is_two_entries(
    space: KeySpace, other: KeySpace, key: Make
) -> None:
    with opened(None, space, other) as cache:
        stored(cache, key(1), "of one")
        stored(cache, key(1, 0, other), "of the other")
        assert len(cache) == 2
        found = cache.lookup_key(key(1), BOTH)
        assert isinstance(found, Hit) and found.response == "of one"
        cache.report_false_hit(found)  # says nothing of the other's similarities
        assert answer(cache, key(1)) is None and answer(cache, key(1, 0, other)) == "of the other"


def test_policies_are_told_of_the_key_space(space: KeySpace, other: KeySpace, key: Make) -> None:
    from keynet.cache.policies.lru import LRU

    scopes = []

    class Told(LRU):
        def on_insert(self, stored: Any) -> None:
            scopes.append(stored.scope)
            super().on_insert(stored)

    with opened(None, space, other, policy=Told, max_entries=9) as cache:
        stored(cache, key(1))
        stored(cache, key(2))
        stored(cache, key(3, 0, other))
    assert scopes[0] == scopes[1] != scopes[2]


def test_entries_of_a_key_space_that_is_no_longer_served_expire_too(
    space: KeySpace, other: KeySpace, key: Make, tmp_path: Path, new_clock: Callable
) -> None:
    clock = new_clock()
    with opened(tmp_path / "c", space, other, clock=clock) as cache:
        stored(cache, key(1, 0, other), ttl=1.0)
    clock.now += 5
    with opened(tmp_path / "c", space, clock=clock) as cache:
        stored(cache, key(2))
        assert len(cache) == 1 and cache.stats().expired == 1 and cache.stats("f00d").expired == 0
        with pytest.raises(CacheError, match="key_space is 'beef'; expected f00d"):
            cache.stats("beef")


def test_another_rule_opens_the_folder(space: KeySpace, tmp_path: Path) -> None:
    class Counting(FixedThreshold):
        seen = 0

        def observe(self, key: Key, modalities: str) -> None:
            self.seen += 1

        def state(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def restore(self, state: Any) -> None:
            self.seen = state["seen"]

    def rule() -> PerModalities:
        return PerModalities({BOTH: Counting(0.9)})

    first = rule()
    with opened(tmp_path / "c", space, acceptance=first):
        first._rules[BOTH].seen = 7  # type: ignore[attr-defined]
    again = rule()
    with opened(tmp_path / "c", space, acceptance=again):
        assert again._rules[BOTH].seen == 7  # type: ignore[attr-defined]
    mixed = PerModalities({BOTH: FixedThreshold(0.5)})
    with opened(tmp_path / "c", space, acceptance=mixed), pytest.raises(CacheError, match="in use"):
        opened(tmp_path / "c", space)
    with opened(tmp_path / "c", space, acceptance=Counting(0.9)) as cache:
        assert len(cache) == 0


def test_a_rule_that_cannot_go_on_leaves_the_folder_free(space: KeySpace, tmp_path: Path) -> None:
    class Broken(FixedThreshold):
        def restore(self, state: Any) -> None:
            raise KeyError("seen")

    with opened(tmp_path / "c", space, acceptance=Broken(0.9)):
        pass
    with pytest.raises(KeyError):
        opened(tmp_path / "c", space, acceptance=Broken(0.9))
    with opened(tmp_path / "c", space):
        pass


def test_a_key_that_is_replaced_over_and_over_is_always_there(
    space: KeySpace, key: Make, tmp_path: Path
) -> None:
    with opened(tmp_path / "c", space) as cache:
        stored(cache, key(1), 0)
        ends = threading.Event()

        def replacing() -> None:
            number = 0
            while not ends.is_set():
                number += 1
                stored(cache, key(1), number)

        thread = threading.Thread(target=replacing)
        thread.start()
        found = [answer(cache, key(1)) for _ in range(600)]
        ends.set()
        thread.join()
    assert None not in found and found == sorted(found) and found[-1] > 10


def test_many_that_expired_do_not_hide_one_that_lives(
    space: KeySpace, key: Make, new_clock: Callable
) -> None:
    clock, base = new_clock(), key(1)
    noise = np.random.default_rng(0).standard_normal((101, space.dim)).astype(np.float32) * 0.01
    vectors = base.vector + noise * np.linspace(0.1, 1, 101, dtype=np.float32)[:, None]
    keys = [replace(base, vector=v / np.linalg.norm(v)) for v in vectors]
    with opened(None, space, clock=clock) as cache:
        for number, one in enumerate(keys):
            stored(cache, one, number, ttl=None if number == 100 else 1.0)
        clock.now += 2
        assert answer(cache, base) == 100 and len(cache) == 101  # looking up only reads


def test_a_repeated_request_is_served_its_own(space: KeySpace, key: Make) -> None:
    base, side = key(1), np.random.default_rng(0).standard_normal((6, space.dim))
    for apart in (1e-5, 3e-5, 1e-4):  # less than half precision tells; cosines are rounded to 1
        vectors = base.vector + apart * side.astype(np.float32)
        keys = [replace(base, vector=v / np.linalg.norm(v)) for v in vectors]
        with opened(None, space) as cache:
            for number, one in enumerate(keys):
                stored(cache, one, number)
            assert [answer(cache, one) for one in keys] == [0, 1, 2, 3, 4, 5]


def test_an_index_that_cannot_write_hides_nothing_and_is_mended(
    space: KeySpace, key: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "c", space, max_entries=2) as cache:
        stored(cache, key(1))
        stored(cache, key(2))
        with monkeypatch.context() as patch:
            patch.setattr(CodeIndex, "remove", full)
            number = stored(cache, key(3))
            cache.report_false_hit(number)
            assert [answer(cache, key(n)) for n in (1, 2, 3)] == [None, "x", None]
            assert len(cache) == 1 and cache._entries.count("f00d") == 3
        shutil.copytree(tmp_path / "c", tmp_path / "killed")
        stored(cache, key(4))
        assert cache._entries.count("f00d") == 2 == len(cache)
    with opened(tmp_path / "killed", space) as cache:
        assert cache._entries.count("f00d") == 1 and answer(cache, key(2)) == "x"


def test_the_number_of_an_entry_that_was_cut_short_is_not_given_again(
    space: KeySpace, key: Make, tmp_path: Path
) -> None:
    with opened(tmp_path / "c", space) as cache:
        last = stored(cache, key(1))
    with CodeIndex(space, tmp_path / "c" / "index-f00d") as index:
        index.insert(last + 1, key(2))  # as a kill before the commit leaves it
    with opened(tmp_path / "c", space) as cache:
        assert answer(cache, key(2)) is None and cache._entries.count("f00d") == 1
        assert stored(cache, key(3)) == last + 2


def test_a_bad_key_is_not_learned_from(space: KeySpace, key: Make) -> None:
    class Seeing(FixedThreshold):
        def observe(self, key: Key, modalities: str) -> None:
            raise AssertionError("seen")

    bad = replace(key(1), vector=np.full(space.dim, np.nan, np.float32))
    with (
        opened(None, space, acceptance=Seeing(0.9)) as cache,
        pytest.raises(ValueError, match="norm nan"),
    ):
        cache.lookup_key(bad, BOTH)


def test_what_is_no_hit_is_refused(space: KeySpace) -> None:
    with opened(None, space) as cache:
        for bad, said in (("7", "expected a whole number"), (2**63, r"expected 0 to 2\^63")):
            with pytest.raises(ValueError, match=said):
                cache.report_false_hit(bad)  # type: ignore[arg-type]


def test_false_hits_and_audits_survive_a_kill(space: KeySpace, key: Make, tmp_path: Path) -> None:
    class Counting(FixedThreshold):
        wrong = 0

        def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
            self.wrong += not equivalent

        def state(self) -> dict[str, Any]:
            return {"wrong": self.wrong}

        def restore(self, state: Any) -> None:
            self.wrong = state["wrong"]

    with opened(tmp_path / "c", space, acceptance=Counting(0.9), audit_share=1.0) as cache:
        stored(cache, key(1), "wrong")
        found = cache.lookup_key(key(1), BOTH)
        assert isinstance(found, Hit)
        cache.report_audit(found, equivalent=False)
        shutil.copytree(tmp_path / "c", tmp_path / "killed")
    again = Counting(0.9)
    with opened(tmp_path / "killed", space, acceptance=again) as cache:
        assert again.wrong == 1 and len(cache) == 0
        stored(cache, key(1), "wrong again")
        assert answer(cache, key(1)) is None


def test_a_raise_of_many_versions_does_not_hold_up_one_insert(
    space: KeySpace, key: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(None, space) as cache:
        for number in range(100):
            cache.raise_version("user", str(number))
        asked = []
        monkeypatch.setattr(cache._entries.store, "outdated", lambda *of: asked.append(of) or [])
        stored(cache, key(1))
        assert len(asked) == 32


def test_a_lookup_that_closing_overtakes(space: KeySpace, key: Make, tmp_path: Path) -> None:
    with opened(tmp_path / "c", space) as cache:
        stored(cache, key(1))
    for call in (
        lambda: cache._entries.near(key(1), 0.0, None),
        lambda: cache._entries.store.read([0]),
        lambda: cache._entries.store.response(0),
    ):
        with pytest.raises(CacheError, match="cache is closed; open it again"):
            call()


def test_closing_while_others_use_it(space: KeySpace, key: Make, tmp_path: Path) -> None:
    said: list[Exception] = []
    with opened(tmp_path / "c", space) as cache:
        stored(cache, key(0))

        def use(me: int) -> None:
            number = me
            try:
                while True:
                    number += 4
                    answer(cache, key(0))
                    stored(cache, key(number))
                    last[me] = number
            except Exception as error:
                said.append(error)

        last = dict.fromkeys(range(4), 0)
        crew = [threading.Thread(target=use, args=(me,)) for me in range(4)]
        for one in crew:
            one.start()
        threading.Event().wait(0.3)
    for one in crew:
        one.join()
    assert {(type(error).__name__, str(error)) for error in said} == {
        ("CacheError", "cache is closed; open it again")
    }
    with opened(tmp_path / "c", space) as cache:  # and nothing that was acknowledged is lost
        assert [answer(cache, key(number)) for number in last.values()] == ["x"] * 4
