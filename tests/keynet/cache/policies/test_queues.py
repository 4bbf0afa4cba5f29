"""Policies of queues and lists, in short sequences whose outcome their papers give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
