from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TRAINING = (
    "pytorch_lightning", "lightning", "hydra", "omegaconf", "transformers", "diffusers",
    "open_clip", "timm", "torchvision", "aligners", "distill", "data", "keynet.models",
    "keynet.training", "keynet.evaluation", "keynet.export.exporter",
)  # fmt: skip
RUNTIME = (
    "keynet", "keynet.types", "keynet.pictures", "keynet.preprocess", "keynet.export.manifest",
    "keynet.export.loader", "keynet.export.verify", "keynet.cache.scope", "keynet.cache.threshold",
    "keynet.cache.modality_distance", "keynet.cache.index", "keynet.hashing",
    "keynet.hashing.capture", "keynet.hashing.cpu",
    "keynet.replay.closed_loop", "keynet.replay.orders",
)  # fmt: skip


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_runtime_imports_nothing_that_trains() -> None:
    program = (
        f"import sys, {', '.join(RUNTIME)}\nprint([m for m in {TRAINING!r} if m in sys.modules])"
    )
    assert run(program) == "[]"


def test_the_runtime_api() -> None:
    import keynet

    assert keynet.__all__ == ["Key", "KeySpace", "Request", "__version__", "load_key_model"]
    assert all(hasattr(keynet, name) for name in keynet.__all__)


def test_the_scope_digest_stands_on_the_standard_library() -> None:
    path = Path(__file__).parents[1] / "keynet/cache/scope.py"
    program = (
        "import sys, runpy\n"
        f"runpy.run_path({str(path)!r})\n"
        "print([m for m in ('torch', 'numpy', 'keynet') if m in sys.modules])"
    )
    assert run(program) == "[]"
