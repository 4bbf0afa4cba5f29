"""The scope of a request: all that must match exactly before an answer may be shared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal


class Choice(Enum):
    """Said in the place of a value; compare with ``is``."""

    SHARED = "shared"


SHARED: Literal[Choice.SHARED] = Choice.SHARED
Shared = Literal[Choice.SHARED]


def request_scope(
    *,
    model: str | Shared,
    sampling: Mapping[str, Any] | Shared,
    system: str | Shared | None,
    turns: Sequence[Any] | Shared,
    tenant: str | Shared,
    scene: str | Shared,
    device: str | Shared,
    user: str | Shared,
    **more: Any,
) -> dict[str, Any]:
    """Return the scope of a request, for ``Request.scope``.

    Every field must be given, so that nothing is shared by oversight. ``SHARED`` leaves a field
    out: answers then serve requests whatever their value of it. Key space, modalities present and
    versions are always part of what must match; they are not given here.

    Args:
        model: The serving model that answers, with its version.
        sampling: Its settings: temperature, top_p, most tokens, format of the answer, ...
        system: System prompt; None is a request without one.
        turns: Earlier turns of the conversation, as text, lists and mappings; bytes in them, such
            as pictures, count by their SHA-256.
        tenant: Whose data answers may come from. Two tenants never share an answer.
        scene: Where the request is made: a page, an app, a camera. Has versions.
        device: What it is made with. Has versions.
        user: A token of the user or the session. Has versions.
        **more: Anything else that must match.

    Raises:
        ValueError: A field of ``more`` is SHARED, which is what it is when it is not given.
    """
    named = {
        "model": model, "sampling": sampling, "system": system, "turns": turns, "tenant": tenant,
        "scene": scene, "device": device, "user": user,
    }  # fmt: skip
    for name, value in more.items():
        if value is SHARED:
            raise ValueError(f"{name} is SHARED; leave it out, it is no field that must be given")
    return {name: _hashed(value) for name, value in (named | more).items() if value is not SHARED}


def _hashed(value: Any) -> Any:
    """Return a value with bytes in it replaced by what tells them apart."""
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Mapping):
        return {name: _hashed(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hashed(item) for item in value]
    return value
