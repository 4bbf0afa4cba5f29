"""Which similarity is enough to serve an entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from keynet.types import Key


class AcceptanceError(ValueError):
    """A rule that cannot be made or used; the message says what was expected."""


class Acceptance(Protocol):
    """A rule that says how similar an entry must be; the cache calls it under one lock."""

    def threshold(self, key: Key, modalities: str) -> float | None:
        """Return the least similarity at which a request may be served; None serves nothing.

        Args:
            key: Of the request.
            modalities: ``image+text``, ``image`` or ``text``.

        Raises:
            AcceptanceError: The rule holds for other key spaces.
        """
        ...

    def observe(self, key: Key, modalities: str) -> None:
        """See the key of a lookup, after its threshold was asked for."""
        ...

    def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
        """Learn what came of a hit that was drawn at random to be asked upstream as well."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what was learned, as JSON can hold it."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        ...


def kept(rule: Acceptance) -> dict[str, Any]:
    """Return what a rule has learned, and which rule it is."""
    return {"rule": type(rule).__name__, "state": rule.state()}


def resume(rule: Acceptance, before: Mapping[str, Any]) -> None:
    """Let a rule go on from what was kept; what a rule of another class learned is passed over."""
    if before["rule"] == type(rule).__name__:
        rule.restore(before["state"])


class FixedRule:
    """A rule that learns nothing; rules that do not either derive from it."""

    def observe(self, key: Key, modalities: str) -> None:
        """Learn nothing."""

    def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
        """Learn nothing."""

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""


class FixedThreshold(FixedRule):
    """One similarity for all.

    Args:
        value: In [-1, 1]; None serves nothing. At 1 an entry of the very same vector is served.

    Raises:
        AcceptanceError: It is no cosine.
    """

    def __init__(self, value: float | None) -> None:
        self.value = None if value is None else cosine("threshold", value)

    def threshold(self, key: Key, modalities: str) -> float | None:
        """Return the similarity."""
        return self.value


class _Divided:
    """Rules among which requests are divided by a name that each has."""

    def __init__(self, rules: Mapping[str, Acceptance], default: Acceptance | None = None) -> None:
        self._rules, self._default = dict(rules), default

    def threshold(self, key: Key, modalities: str) -> float | None:
        """Return what the request's rule says."""
        return self._of(key, modalities).threshold(key, modalities)

    def observe(self, key: Key, modalities: str) -> None:
        """Tell the request's rule."""
        self._of(key, modalities).observe(key, modalities)

    def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
        """Tell the request's rule."""
        self._of(key, modalities).audited(key, modalities, similarity, equivalent)

    def state(self) -> dict[str, Any]:
        """Return the state of each rule."""
        rules = {name: kept(rule) for name, rule in self._rules.items()}
        return {"rules": rules, "default": None if self._default is None else kept(self._default)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore each rule that is still there."""
        for name, rule in self._rules.items():
            if name in state["rules"]:
                resume(rule, state["rules"][name])
        if self._default is not None and state["default"] is not None:
            resume(self._default, state["default"])

    def _of(self, key: Key, modalities: str) -> Acceptance:
        name = self._name(key, modalities)
        rule = self._rules.get(name, self._default)
        if rule is None:
            raise AcceptanceError(
                f"no rule for {name}, only for {', '.join(self._rules) or 'nothing'}; give it one"
            )
        return rule

    def _name(self, key: Key, modalities: str) -> str:
        raise NotImplementedError


class PerScope(_Divided):
    """A rule for each of some scopes, and one for all others.

    Args:
        rules: By scope digest (``Key.scope_digest``).
        default: For all other scopes.
    """

    def __init__(self, rules: Mapping[str, Acceptance], default: Acceptance) -> None:
        super().__init__(rules, default)

    def _name(self, key: Key, modalities: str) -> str:
        return key.scope_digest


class PerKeySpace(_Divided):
    """A rule for each key space of an A/B test; a similarity in one means nothing in another.

    Args:
        rules: By fingerprint (``KeySpace.fingerprint``). Keys of others are an AcceptanceError.
    """

    def __init__(self, rules: Mapping[str, Acceptance]) -> None:
        super().__init__(rules)

    def _name(self, key: Key, modalities: str) -> str:
        return key.space.fingerprint


class PerModalities(_Divided):
    """A rule for each pattern of modalities, such as one that serves no text alone.

    Args:
        rules: By ``image+text``, ``image`` and ``text``. Requests of others are an AcceptanceError.
    """

    def __init__(self, rules: Mapping[str, Acceptance]) -> None:
        super().__init__(rules)

    def _name(self, key: Key, modalities: str) -> str:
        return modalities


def cosine(name: str, value: float) -> float:
    """Return a similarity.

    Raises:
        AcceptanceError: It is no number in [-1, 1].
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1 <= value <= 1:
        raise AcceptanceError(f"{name} is {value!r}; expected a cosine, -1 to 1")
    return float(value)
