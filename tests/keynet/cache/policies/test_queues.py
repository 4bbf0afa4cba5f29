"""Policies of queues and lists, in short sequences whose outcome their papers give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keynet.cache.policies.arc import ARC
from keynet.cache.policies.lirs import LIRS
from keynet.cache.policies.lru import LRU
from keynet.cache.policies.policy import Policy, PolicyError, Stored
from keynet.cache.policies.s3_fifo import S3FIFO
from keynet.cache.policies.sieve import SIEVE
from keynet.cache.policies.w_tinylfu import WTinyLFU


class Cache:
    """Asks for objects by a letter, and names those that are held."""

    def __init__(self, policy: Policy, capacity: int) -> None:
        self.policy, self.capacity = policy, capacity
        self.held: dict[str, int] = {}
        self.number = 0

    def ask(self, letters: str) -> Cache:
        for letter in letters:
            self.number += 1
            if letter in self.held:
                self.policy.on_hit(self.held[letter])
                continue
            incoming = Stored(self.number, letter)
            self.policy.on_miss(incoming)
            while len(self.held) >= self.capacity:
                gone = self.policy.victim()
                self.held = {one: at for one, at in self.held.items() if at != gone}
            self.policy.on_insert(incoming)
            self.held[letter] = self.number
        return self

    def remove(self, letter: str) -> Cache:
        self.policy.on_remove(self.held.pop(letter))
        return self

    def __str__(self) -> str:
        return "".join(sorted(self.held))


def cache(make: Callable[..., Any], capacity: int, **settings: object) -> Cache:
    return Cache(make(capacity, **settings), capacity)


def test_lru_keeps_what_was_used_last() -> None:
    assert str(cache(LRU, 3).ask("abcad")) == "acd"


def test_sieve_spares_what_was_used_and_moves_nothing() -> None:
    assert str(cache(SIEVE, 3).ask("abcad")) == "acd"  # spares a, takes b
    assert str(cache(SIEVE, 3).ask("abcade")) == "ade"  # the hand is at c
    assert str(cache(SIEVE, 3).ask("abcadef")) == "aef"  # then at d; a is older than the hand
    assert str(cache(SIEVE, 3).ask("abcad").remove("c").ask("ef")) == "aef"


def test_arc_moves_its_target_for_what_comes_back() -> None:
    asked = cache(ARC, 3).ask("aabcd")  # b went, and is remembered
    assert str(asked) == "acd" and asked.policy._p == 0
    asked.ask("b")
    assert str(asked) == "abd" and asked.policy._p == 1  # t1 has 2, so its oldest goes
    assert set(asked.policy._t2) == {asked.held["a"], asked.held["b"]}
    assert list(asked.policy._b1) == ["c"]


def test_arc_at_its_target_takes_the_once_used_for_what_was_used_again() -> None:
    asked = cache(ARC, 3).ask("cbeeacb")  # e, used again, went
    assert asked.policy._p == len(asked.policy._t1) + 1 and "e" not in asked.held
    asked.ask("e")  # the target falls to what is there, and the paper's tie is t1's
    assert str(asked) == "bce"


def test_arc_forgets_what_was_removed() -> None:
    asked = cache(ARC, 3).ask("abc").remove("a").ask("a")
    assert not asked.policy._t2 and asked.policy._p == 0


def test_s3_fifo_lets_go_early_what_is_used_once() -> None:
    letters = "abcdefghij"
    asked = cache(S3FIFO, 10, small=0.2).ask(letters)  # a and b are in the small queue
    assert str(asked.ask("bbx")) == "bcdefghijx"  # a goes at once
    assert str(asked.ask("y")) == "bcdefghijy"  # b was used twice and moves on, x was not
    asked.ask("a")  # it is remembered; y is within the small queue's share, so the main one gives
    assert str(asked) == "abdefghijy" and asked.held["a"] in asked.policy._main


def test_lirs_takes_what_comes_back_soon() -> None:
    asked = cache(LIRS, 4, hir=0.25).ask("abcd")  # a, b, c are LIR and d is HIR
    assert str(asked.ask("e")) == "abce"  # d is the one that goes, not the oldest
    asked.ask("d")  # it was still in the stack, so it becomes LIR in the place of a
    assert {asked.held[one] for one in "bcd"} == asked.policy._lir
    assert str(asked) == "abcd"
    assert str(asked.ask("f")) == "bcdf"


def test_w_tinylfu_admits_by_how_often_was_asked() -> None:
    asked = cache(WTinyLFU, 4).ask("aaabbbcccd")  # d is in the window
    assert str(asked.ask("e")) == "abce"  # d was asked for once, the others thrice
    assert str(asked.ask("dd")) == "abcd"  # e was asked for once
    assert str(asked.ask("ddf")) == "bcdf"  # d was asked for more often than a, on probation
    assert str(cache(WTinyLFU, 4).ask("abcde")) == "abce"  # on a tie the window's goes
    assert str(cache(WTinyLFU, 4).ask("abcddde")) == "bcde"  # hits count


ACCOUNTS = {
    ARC: ("_t1", "_t2", "_b1", "_b2"),
    S3FIFO: ("_small", "_ghost"),
    WTinyLFU: ("_window", "_protected"),
    LIRS: ("_lir", "_gone"),
}


@pytest.mark.parametrize("make", ACCOUNTS)
def test_every_account_is_the_sum_of_what_it_counts(make: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    policy, held = make(60), dict[int, Stored]()

    def size(one: object) -> int:
        return one if isinstance(one, int) else one.size  # type: ignore[attr-defined]

    for number, (what, pick) in enumerate(rng.integers(0, (10, 40), (2000, 2)).tolist()):
        if what < 2 and held:
            policy.on_hit(sorted(held)[pick % len(held)])
        elif what == 2 and held:
            policy.on_remove(sorted(held)[pick % len(held)])
            del held[sorted(held)[pick % len(held)]]
        else:  # two that are held may be of one request
            stored = Stored(number, pick, size=1 + pick % 4)
            policy.on_miss(stored)
            while sum(one.size for one in held.values()) + stored.size > 60:
                del held[policy.victim()]
            policy.on_insert(stored)
            held[number] = stored
        for name in ACCOUNTS[make]:
            part = getattr(policy, name)
            ones = part.values() if isinstance(part, dict) else part
            if make is WTinyLFU or name == "_lir":
                ones = [held[entry] for entry in part]
            assert getattr(policy, f"{name}_size") == sum(map(size, ones))


def test_w_tinylfu_is_its_definition_written_out(zipf: Callable) -> None:
    capacity, window_most, protected_most = 30, 3, 21  # .8 of what the window leaves
    policy = WTinyLFU(capacity, window=0.1)
    window, probation, protected = list[str](), list[str](), list[str]()
    held, asked = dict[str, int](), dict[str, int]()
    counted = most_held = 0
    evicted = 0
    for number, what in enumerate(zipf(6000, 200, 0.8).tolist()):
        asked[what] = min(15, asked.get(what, 0) + 1)
        counted += 1
        if counted == 10 * max(1, most_held):
            asked = {one: count // 2 for one, count in asked.items() if count // 2}
            counted //= 2
        if what in held:
            policy.on_hit(held[what])
            part = next(part for part in (window, probation, protected) if what in part)
            part.remove(what)
            (window if part is window else protected).append(what)
            if len(protected) > protected_most:
                probation.append(protected.pop(0))
            continue
        incoming = Stored(number, what)
        policy.on_miss(incoming)
        if len(held) == capacity:
            main = (probation or protected)[0]
            if asked.get(window[0], 0) <= asked.get(main, 0):
                gone = window.pop(0)
            else:
                gone = (probation or protected).pop(0)
                probation.append(window.pop(0))
            assert policy.victim() == held.pop(gone)
            evicted += 1
        policy.on_insert(incoming)
        held[what] = number
        most_held = max(most_held, len(held))
        window.append(what)
        if len(window) > window_most:
            probation.append(window.pop(0))
    assert evicted > 1000


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: S3FIFO(9, small=1.5), "small is 1.5; expected a number, 0 to 1"),
        (lambda: LIRS(9, hir=-0.1), "hir is -0.1; expected a number, 0 to 1"),
        (lambda: WTinyLFU(9, window="x"), "window is 'x'; expected a number, 0 to 1"),
    ],
)
def test_a_share_that_is_none_is_refused(make: Callable, line: str) -> None:
    with pytest.raises(PolicyError) as error:
        make()
    assert str(error.value) == line
