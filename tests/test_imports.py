from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TRAINING = (
    "pytorch_lightning", "lightning", "hydra", "omegaconf", "transformers", "diffusers",
    "open_clip", "timm", "torchvision", "aligners", "distill", "data", "keynet.models",
    "keynet.training", "keynet.evaluation", "keynet.export.exporter", "scipy", "matplotlib",
    "sklearn",
)  # fmt: skip
ROOT = Path(__file__).parents[1]
RUNTIME = (
    "keynet", "keynet.types", "keynet.pictures", "keynet.preprocess", "keynet.export.manifest",
    "keynet.export.loader", "keynet.export.verify", "keynet.hashing", "keynet.hashing.capture",
    "keynet.hashing.cpu",
    *(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("cache", "replay")
        for path in sorted((ROOT / "keynet" / package).rglob("*.py"))
        if path.name != "__init__.py"
    ),
)  # fmt: skip


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_runtime_imports_nothing_that_trains() -> None:
    assert {"keynet.cache.cache", "keynet.cache.policies.lru", "keynet.replay.orders"} < {*RUNTIME}
    program = (
        f"import sys, {', '.join(RUNTIME)}\nprint([m for m in {TRAINING!r} if m in sys.modules])"
    )
    assert run(program) == "[]"


def test_the_runtime_api() -> None:
    import keynet

    assert keynet.__all__ == [
        "SHARED", "CacheError", "FixedThreshold", "Hit", "Key", "KeySpace", "Miss", "Request",
        "SemanticCache", "__version__", "load_key_model", "request_scope",
    ]  # fmt: skip
    assert all(hasattr(keynet, name) for name in keynet.__all__)


def test_the_scope_digest_stands_on_the_standard_library() -> None:
    path = ROOT / "keynet/cache/scope.py"
    program = (
        "import sys, runpy\n"
        f"runpy.run_path({str(path)!r})\n"
        "print([m for m in ('torch', 'numpy', 'keynet') if m in sys.modules])"
    )
    assert run(program) == "[]"
