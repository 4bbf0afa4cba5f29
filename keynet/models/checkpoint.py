"""Checkpoints of other packages, read whole or refused, in one line each."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

# What transformers and open_clip raise on files that are absent, damaged or of another kind:
# there is no common base class. ImportError: a tokenizer whose own package is missing.
READ_ERRORS = (
    OSError, ValueError, RuntimeError, KeyError, ImportError, pickle.UnpicklingError,
    SafetensorError,
)  # fmt: skip
SHOWN = 3  # names of weights in a message


def require(module: str) -> Any:
    """Return the module, or say which extra has it.

    Raises:
        ModuleNotFoundError: When it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is missing, which this network needs; "
            "install it with: pip install 'keynet-cache[teachers]'"
        ) from error


def one_line(error: BaseException, length: int = 200) -> str:
    """Return an error's message on one line, cut to ``length`` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= length else text[: length - 1] + "…"


def listed(weights: Sequence[str] | set[str]) -> str:
    """Return some names of weights and the count of the rest."""
    names = sorted(weights)
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def load_network(path: str, model_class: Any, part: str = "", **options: Any) -> nn.Module:
    """Return ``model_class.from_pretrained(path)`` in float32, every weight from the checkpoint.

    Args:
        path: A folder that save_pretrained wrote, or a hub name.
        model_class: Of transformers.
        part: Start of the names of the weights that must be there.
        options: Of ``from_pretrained``.

    Raises:
        ValueError: When its files cannot be read, or a weight would stay random.
    """
    try:
        with _quiet():
            network, info = model_class.from_pretrained(
                path,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, by name
                trust_remote_code=False,  # and no question on the terminal whether to
                local_files_only=Path(path).is_dir(),
                **options,
            )
    except READ_ERRORS as error:
        raise ValueError(
            f"the weights of {path} cannot be read ({one_line(error)}); fetch them again, or check "
            "the path or the name"
        ) from error
    if info["mismatched_keys"]:
        weight, stored, needed = min(info["mismatched_keys"])
        raise ValueError(
            f"weight {weight} of {path} is {tuple(stored)}, its config.json says "
            f"{tuple(needed)}; take both from one checkpoint"
        )
    missing = sorted(key for key in info["missing_keys"] if key.startswith(part))
    if missing:
        raise ValueError(
            f"{path} lacks {listed(missing)}, which would stay random; fetch a whole checkpoint of "
            "this architecture"
        )
    loaded: nn.Module = network
    return loaded


def load_image_normalisation(path: str) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of a checkpoint's pixels in [0, 1].

    Raises:
        ValueError: When it has no image processor that can be read.
    """
    try:
        processor = require("transformers").AutoImageProcessor.from_pretrained(
            path, local_files_only=Path(path).is_dir(), trust_remote_code=False
        )
    except READ_ERRORS as error:
        raise ValueError(
            f"{path} has no image processor that can be read ({one_line(error)}); put its "
            "preprocessor_config.json beside the weights"
        ) from error
    return list(processor.image_mean), list(processor.image_std)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar and no table of weights, as before afterwards: the checks are ours."""
    logging = require("transformers").utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
