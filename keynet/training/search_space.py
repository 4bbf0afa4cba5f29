"""What a sweep searches, in Hydra's own words: KEY=choice(a,b), range(1,9,2), interval(0,1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

LOG = "log"


class SearchSpaceError(ValueError):
    """Options that cannot be searched; the message says what to give."""


def search_space(options: Sequence[str]) -> tuple[list[str], dict[str, BaseDistribution]]:
    """Return the options that all trials share, and by key what is searched.

    ``a,b`` and ``choice(a,b)`` are choices, ``range(1,9,2)`` numbers before 9 by steps,
    ``interval(0,1)`` real numbers, ``tag(log,interval(1e-4,1e-2))`` real numbers by their
    logarithm.

    Raises:
        SearchSpaceError: An option cannot be read or searched, or nothing is.
    """
    fixed, searched = list[str](), dict[str, BaseDistribution]()
    for option in options:
        try:
            override = OverridesParser.create().parse_override(option)
        except HydraException as error:
            raise SearchSpaceError(
                f"option {option!r} cannot be read ({error}); give KEY=VALUE"
            ) from error
        key = override.get_key_element()
        if key == "run_dir":
            raise SearchSpaceError("run_dir is given; a sweep names the directories of its runs")
        if key in searched:
            raise SearchSpaceError(f"{key} is searched twice; give it once")
        if override.is_sweep_override():
            searched[key] = _distribution(option, override)
        else:
            fixed.append(option)
    if not searched:
        raise SearchSpaceError(
            "nothing is searched; give an option as choice, range or interval, such as "
            "'module.learning_rate=tag(log,interval(1e-4,3e-3))'"
        )
    return fixed, searched


def chosen_options(params: Mapping[str, Any]) -> list[str]:
    """Return what a trial chose, as options of train.py."""
    return [f"{key}={value}" for key, value in params.items()]


def _distribution(option: str, override: Override) -> BaseDistribution:
    found: Any = override.value()
    log = LOG in found.tags
    try:
        if isinstance(found, IntervalSweep):
            return FloatDistribution(float(found.start or 0), float(found.end or 0), log=log)
        if isinstance(found, RangeSweep):
            return _range(found, log)
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    except ValueError as error:
        raise SearchSpaceError(f"option {option!r} cannot be searched: {error}") from error


def _range(found: RangeSweep, log: bool) -> BaseDistribution:
    first, stop, step = found.start or 0, found.stop or 0, found.step
    num_steps = -int(-(stop - first) // step) - 1  # whole steps before the end
    if all(isinstance(value, int) for value in (first, stop, step)):
        return IntDistribution(int(first), int(first + num_steps * step), log, int(step))
    return FloatDistribution(first, first + num_steps * step, log=log, step=None if log else step)
