"""The only parts of a key model that are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn


def train_only(model: nn.Module, parts: Any) -> list[str]:
    """Freeze all but ``parts``, of which is trained what was trained before, and return them.

    Args:
        model: The key model.
        parts: Names of modules in it, such as ``image_adapter`` or ``aligner.projections.text``.

    Raises:
        ValueError: When ``parts`` is no list of names, or one of them is not there or frozen.
    """
    known = ", ".join(name for name, _ in model.named_children())
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise ValueError(
            f"module.trained={parts!r}: expected a list of parts of the key model, such as "
            f"[image_adapter]; it has {known}"
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    trained = set()
    for part in parts:
        if not isinstance(part, str) or not part or part not in modules:
            raise ValueError(
                f"module.trained names {part!r}, which the key model has not; it has {known}, and "
                "what is in them"
            )
        own = {p for p in modules[part].parameters() if p.requires_grad}
        if not own:
            mend = "give adapter=low_rank" if part == "image_adapter" else "leave it out"
            raise ValueError(
                f"module.trained names {part!r}, in which nothing can be trained: it is frozen or "
                f"has no weights; {mend}; the model has {known}"
            )
        trained |= own
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in trained)
    return list(parts)
