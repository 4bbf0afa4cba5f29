"""Checkpoints read whole or refused, in one line each; shared by the teachers."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from distill.teacher import TeacherError
from keynet.models import checkpoint
from keynet.models.checkpoint import READ_ERRORS, one_line, require


def check_model_type(name: str, path: str, expected: Sequence[str] = ()) -> str:
    """Return the ``model_type`` of a checkpoint's config.json.

    Args:
        name: The teacher, for messages.
        path: A folder or a hub name.
        expected: What it may be; empty accepts all.

    Raises:
        TeacherError: When there is no such checkpoint, or it is of another architecture.
    """
    config = require("transformers").PreTrainedConfig
    try:
        found, _ = config.get_config_dict(path, local_files_only=_is_folder(path))
    except READ_ERRORS as error:
        raise TeacherError(
            f"teacher {name}: {path} is no folder with a config.json and no model that the hub "
            f"gives ({one_line(error)}); check the path, or the name and the network"
        ) from error
    model_type = found.get("model_type")
    if not isinstance(model_type, str):
        raise TeacherError(
            f"teacher {name}: {path} has no config.json with a model_type; "
            "give a folder that save_pretrained wrote"
        )
    if expected and model_type not in expected:
        raise TeacherError(
            f"teacher {name}: {path} is of type {model_type}, expected "
            f"{' or '.join(expected)}; take the teacher of that architecture or another checkpoint"
        )
    return model_type


def load_network(name: str, path: str, model_class: Any, **options: Any) -> nn.Module:
    """Return ``model_class.from_pretrained(path)`` in float32, every weight from the checkpoint.

    Raises:
        TeacherError: When its files cannot be read, or a weight would stay random.
    """
    try:
        return checkpoint.load_network(path, model_class, **options)
    except ValueError as error:
        raise TeacherError(f"teacher {name}: {error}") from error


def load_image_processor(name: str, path: str, **options: Any) -> Any:
    """Return the checkpoint's own image processor; ``options`` override its settings.

    Raises:
        TeacherError: When it has none that can be read.
    """
    auto = require("transformers").AutoImageProcessor
    try:
        return auto.from_pretrained(
            path, local_files_only=_is_folder(path), trust_remote_code=False, **options
        )
    except READ_ERRORS as error:
        raise TeacherError(
            f"teacher {name}: {path} has no image processor that can be read "
            f"({one_line(error)}); put its preprocessor_config.json beside the weights"
        ) from error


def load_tokenizer(name: str, path: str) -> Any:
    """Return the checkpoint's own tokenizer.

    Raises:
        TeacherError: When it has none that can be read, or one without a vocabulary.
    """
    auto = require("transformers").AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(
            path, local_files_only=_is_folder(path), trust_remote_code=False
        )
    except READ_ERRORS as error:
        raise TeacherError(
            f"teacher {name}: the tokenizer of {path} cannot be read ({one_line(error)}); check "
            "its files and what they need (spiece.model: pip install sentencepiece protobuf)"
        ) from error
    # Without its files, transformers 5 makes a tokenizer of special tokens alone and says nothing.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise TeacherError(
            f"teacher {name}: {path} has no vocabulary (its tokenizer knows {len(tokenizer)} "
            "special tokens and nothing else); put its tokenizer.json beside the weights"
        )
    return tokenizer


def image_identity(processor: Any) -> dict[str, Any]:
    """Return all that decides what an image processor makes of a picture, as plain JSON."""
    settings: dict[str, Any] = json.loads(processor.to_json_string())
    return {**settings, "class": type(processor).__name__}


def tokenizer_identity(tokenizer: Any) -> dict[str, Any]:
    """Return all that decides what a transformers tokenizer makes of a text, as plain JSON."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        serialised = json.loads(backend.to_str())
        # The state of its last call; what is padded and cut is said beside the digest.
        serialised.pop("padding"), serialised.pop("truncation")
        digest = hashlib.sha256(json.dumps(serialised, sort_keys=True).encode())
    else:
        digest = hashlib.sha256()
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_vocabulary(folder)
            for file in sorted(Path(folder).iterdir()):
                digest.update(file.read_bytes())
    return {
        "class": type(tokenizer).__name__,
        "sha256": digest.hexdigest(),
        "pad_token_id": tokenizer.pad_token_id,
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
    }


def _is_folder(path: str) -> bool:
    """A folder is read without asking the hub."""
    return Path(path).is_dir()
