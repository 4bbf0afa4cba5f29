"""LIRS: what comes back soon stays, however long ago it came last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from keynet.cache.policies.policy import Stored, check_capacity, check_share


class LIRS:
    """Entries that came back soon (LIR) stay; the others (HIR) queue in a small part, and go.

    A stack holds entries by their last use, down to the LIR entry that was used longest ago, and
    what went since then. What is found in it came back sooner than that entry, and changes places
    with it.

    Args:
        capacity: Entries or bytes.
        seed: Not used; nothing is drawn.
        hir: Share of the capacity for HIR entries; 1 entry or byte at least.

    Raises:
        PolicyError: The capacity or the share is none.

    Source: Jiang and Zhang, LIRS, SIGMETRICS 2002, section 3. What went is kept in the stack up to
        the size of the capacity, what went first forgotten first; the paper sets no bound. An LIR
        entry goes where no HIR entry is held, which removals and sizes can bring about.
    """

    def __init__(self, capacity: int, seed: int = 0, *, hir: float = 0.01) -> None:
        check_capacity(capacity)
        self._lir_most = capacity - max(1, int(capacity * check_share("hir", hir)))
        self._gone_most = capacity
        self._stored: dict[int, Stored] = {}
        self._stack: OrderedDict[int, None] = OrderedDict()  # oldest first; some are gone
        self._lir: set[int] = set()
        self._hir: OrderedDict[int, None] = OrderedDict()  # first to go first
        self._gone: OrderedDict[int, Stored] = OrderedDict()  # in the stack
        self._gone_as: dict[Hashable, int] = {}
        self._lir_size = self._gone_size = 0

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Put it on the stack; a HIR entry that was in it becomes LIR."""
        if entry in self._lir:
            self._stack.move_to_end(entry)
            self._prune()
        elif entry in self._stack:
            del self._hir[entry]
            self._to_lir(entry)
        else:
            self._stack[entry] = None
            self._hir.move_to_end(entry)

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Take it in as LIR while there is room for it or it is still in the stack, else as HIR."""
        entry = stored.entry
        self._stored[entry] = stored
        gone = self._gone_as.get(stored.identity)
        if gone is not None:
            self._forget(gone)
        if gone is not None or self._lir_size + stored.size <= self._lir_most:
            self._to_lir(entry)
        else:
            self._hir[entry] = self._stack[entry] = None
        # Not before: what comes back must not be forgotten for what goes for it.
        while self._gone_size > self._gone_most:
            self._forget(next(iter(self._gone)))

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        stored = self._stored.pop(entry)
        self._stack.pop(entry, None)
        if entry in self._lir:
            self._lir.remove(entry)
            self._lir_size -= stored.size
            self._prune()
        else:
            del self._hir[entry]

    def victim(self) -> int:
        """Return the HIR entry that queues longest."""
        if not self._stored:
            raise LookupError("LIRS holds no entry")
        if not self._hir:
            self._demote()
        entry = next(iter(self._hir))
        del self._hir[entry]
        stored = self._stored.pop(entry)
        if entry in self._stack:
            earlier = self._gone_as.get(stored.identity)
            if earlier is not None:
                self._forget(earlier)
            self._gone[entry], self._gone_as[stored.identity] = stored, entry
            self._gone_size += stored.size
        return entry

    def _to_lir(self, entry: int) -> None:
        self._stack[entry] = None
        self._stack.move_to_end(entry)
        self._lir.add(entry)
        self._lir_size += self._stored[entry].size
        while self._lir_size > self._lir_most:
            self._demote()
        self._prune()

    def _demote(self) -> None:
        """Make the LIR entry that was used longest ago the last of the HIR ones."""
        entry, _ = self._stack.popitem(last=False)
        self._lir.remove(entry)
        self._lir_size -= self._stored[entry].size
        self._hir[entry] = None
        self._prune()

    def _prune(self) -> None:
        """Let the stack end at an LIR entry."""
        while self._stack:
            entry = next(iter(self._stack))
            if entry in self._lir:
                break
            if entry in self._gone:
                self._forget(entry)
            else:
                del self._stack[entry]

    def _forget(self, gone: int) -> None:
        stored = self._gone.pop(gone)
        del self._gone_as[stored.identity], self._stack[gone]
        self._gone_size -= stored.size
