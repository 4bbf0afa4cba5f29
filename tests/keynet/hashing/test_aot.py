"""Kernels compiled without a GPU: entry and signature are read back from the PTX."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from keynet.hashing import aot
from keynet.hashing.aot import INDEX, check_kernel, compile_kernels, read_cubin, read_entry

ROOT = Path(__file__).parents[3]
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return compile_kernels(dim=96, bits=256, arches=(90,))


def test_every_kernel_is_there_as_its_index_says(files: dict[str, bytes]) -> None:
    index = json.loads(files[INDEX])
    assert (index["format"], index["dim"], index["bits"]) == (1, 96, 256)
    assert [one["kernel"] for one in index["kernels"]] == [
        "hash_keys", "hash_keys_batch", "popcount_minima", "matrix_minima", "finish",
        "popcount_minima_scoped", "matrix_minima_scoped", "finish_scoped", "cosine_rerank",
    ]  # fmt: skip
    listed = {one[kind] for one in index["kernels"] for kind in ("ptx", "cubin")}
    assert listed | {INDEX} == set(files)
    for one in index["kernels"]:
        assert files[one["cubin"]].startswith(b"\x7fELF")
        entry = read_entry(files[one["ptx"]].decode())
        assert (entry.name, entry.target, entry.threads) == (
            one["entry"], one["target"], one["threads"]
        )  # fmt: skip
        assert one["target"] == "sm_90a" and one["threads"] == 32 * one["num_warps"]
        assert 0 <= one["shared_bytes"] <= 227 * 1024
        wide = {"int32": "b32"}
        assert entry.parameters == tuple(wide.get(a["type"], "b64") for a in one["arguments"])


def test_arguments_of_a_search_are_named_in_order(files: dict[str, bytes]) -> None:
    kernels = {one["kernel"]: one for one in json.loads(files[INDEX])["kernels"]}
    one = kernels["popcount_minima"]
    assert [(a["name"], a["type"]) for a in one["arguments"]] == [
        ("queries", "int32*"), ("codes", "int32*"), ("minima", "int16*"),
        ("num_queries", "int32"), ("num_codes", "int32"), ("readable", "int32"),
        ("num_blocks", "int32"), ("word_stride", "int64"),
        ("global_scratch", "void*"), ("profile_scratch", "void*"),
    ]  # fmt: skip
    assert one["constants"] == {"code_stride": 1, "W": 8, "BLOCK": 256, "SCOPED": 0}
    multiples = {a["name"] for a in one["arguments"] if a.get("multiple_of") == 16}
    assert multiples == {"queries", "codes", "minima", "readable", "num_blocks", "word_stride"}
    scoped = kernels["popcount_minima_scoped"]
    assert [a["name"] for a in scoped["arguments"]][2:4] == ["query_scopes", "code_scopes"]


def test_bits_are_counted_by_one_instruction_and_read_16_bytes_a_thread(
    files: dict[str, bytes],
) -> None:
    ptx = files["kernels/sm_90/popcount_minima.ptx"].decode()
    # Two codes' worth of 128 each in a thread of 256, and of eight words four are counted.
    assert len(re.findall(r"popc\.b32", ptx)) == 8 * 4
    assert "0x55555555" not in ptx and "1431655765" not in ptx
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == 2 * 8
    assert "bar.sync" not in ptx


def test_products_run_on_matrix_units(files: dict[str, bytes]) -> None:
    assert "wgmma" in files["kernels/sm_90/matrix_minima.ptx"].decode()


def test_files_hold_no_path_of_this_machine(files: dict[str, bytes]) -> None:
    for path, content in files.items():
        assert str(ROOT).encode() not in content and b".py" not in content, path


@pytest.mark.parametrize(("arch", "target"), [(80, "sm_80"), (90, "sm_90a"), (100, "sm_100a")])
def test_other_targets_compile(arch: int, target: str) -> None:
    files = compile_kernels(dim=40, bits=64, arches=(arch,), names=("hash_keys", "matrix_minima"))
    for one in json.loads(files[INDEX])["kernels"]:
        assert one["target"] == target
        assert read_cubin(files[one["cubin"]]) == (f"sm_{arch}", {one["entry"]})
        check_kernel(one, files[one["ptx"]], files[one["cubin"]])


def test_a_kernel_for_another_processor_is_not_what_its_index_says(
    files: dict[str, bytes],
) -> None:
    older = compile_kernels(dim=96, bits=256, arches=(80,), names=("finish",))
    [kernel] = (k for k in json.loads(files[INDEX])["kernels"] if k["kernel"] == "finish")
    with pytest.raises(ValueError, match=r"has finish for sm_80; .* says finish for sm_90a"):
        check_kernel(kernel, files[kernel["ptx"]], older["kernels/sm_80/finish.cubin"])
    with pytest.raises(ValueError, match="no cubin"):
        check_kernel(kernel, files[kernel["ptx"]], files[kernel["cubin"]][:63])


def test_without_triton_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="triton is not installed; pip install triton"):
        compile_kernels(96, 256)


def test_widths_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dim=96, bits=100: expected a width, and one of \(64"):
        compile_kernels(96, 100)


def test_ptx_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="PTX with 0 kernels"):
        read_entry(".version 8.0\n.target sm_80\n")
