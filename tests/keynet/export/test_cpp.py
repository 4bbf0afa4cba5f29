from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from keynet.export.loader import load_key_model
from keynet.export.manifest import MODEL
from keynet.preprocess import Preprocessor
from keynet.types import Request

SOURCE = Path(__file__).parents[3] / "docs" / "encode.cpp"
COMPILER = shutil.which("c++")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_libtorch_gives_the_same_code(
    exported: Path, preprocessor: Preprocessor, golden: list[Request], tmp_path: Path
) -> None:
    assert len(SOURCE.read_text().splitlines()) < 45
    program, libraries = tmp_path / "encode", Path(torch.__file__).parent / "lib"
    abi = int(torch.compiled_with_cxx11_abi())
    built = subprocess.run(
        [
            str(COMPILER), "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", str(SOURCE),
            *(f"-I{path}" for path in cpp_extension.include_paths()),
            f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}",
            "-o", str(program),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-2000:]
    batch = preprocessor([golden[0]])
    (tmp_path / "pixels").write_bytes(batch.images.numpy().tobytes())
    arguments = [str(exported / MODEL), str(tmp_path / "pixels"), str(preprocessor.image_size)]
    ids = [str(token) for token in batch.tokens[0][batch.token_mask[0]].tolist()]
    done = subprocess.run(
        [str(program), *arguments, *ids], capture_output=True, text=True, check=True
    )
    key = load_key_model(exported).encode(golden[0])
    assert done.stdout.strip() == key.code.tobytes().hex()

    (tmp_path / "pixels").write_bytes(b"short")
    short = subprocess.run(
        [str(program), *arguments, *ids], capture_output=True, text=True, check=False
    )
    assert short.returncode == 1 and "expected 768 bytes" in short.stderr
