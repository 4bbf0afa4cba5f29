"""The GPU kernels compiled ahead of time, with what a runtime in any language needs to launch them.

Compiles on machines without a GPU. Each kernel is a cubin, for one kind of GPU, and PTX; and
``kernels.json`` says how they are launched (``cuModuleLoadData``, ``cuLaunchKernel``).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from keynet.types import CODE_BITS

FORMAT = 1
ARCHES = (80, 90, 100)  # A100, H100 and H200, B200
FOLDER = "kernels"
INDEX = f"{FOLDER}/kernels.json"
ALIGNMENT = 16
CUDA = b"\xbe\0"  # the machine of a cubin, an ELF file: 190
TYPES = {
    "*fp32": "float32*", "*i32": "int32*", "*i64": "int64*", "*i16": "int16*", "*u8": "uint8*",
    "i32": "int32", "i64": "int64",
}  # fmt: skip
PTX_TYPES = {"int32": "b32", "int64": "b64"}  # every pointer is b64

Arguments = dict[str, tuple[str, str]]  # name -> type as Triton spells it, meaning

HASH: Arguments = {
    "keys": ("*fp32", "[B, D], rows side by side"),
    "weight": ("*fp32", "W [K, D]"),
    "bias": ("*fp32", "b [K]"),
    "codes": ("*u8", "[B, K/8], out: signs of W (x / |x|) + b >= 0, most significant bit first"),
    "norms": ("*fp32", "[B], out: |x|; the code of a key of norm 0, NaN or infinity is void"),
    "num_keys": ("i32", "B"),
}
STORE: Arguments = {
    "queries": ("*i32", "[Q, W]: codes of the queries, their bytes read as words"),
    "codes": ("*i32", "the store: word w of code n at codes[w * word_stride + n]"),
    "query_scopes": ("*i32", "[Q]; a query finds codes of its scope alone"),
    "code_scopes": ("*i32", "[N]"),
}
MINIMA: Arguments = {
    **STORE,
    "minima": ("*i16", "[Q, num_blocks], out: least distance to each block of codes"),
    "num_queries": ("i32", "Q"),
    "num_codes": ("i32", "N"),
    "readable": ("i32", "N rounded up to 16; that many codes must be readable"),
    "num_blocks": ("i32", "ceil(N / BLOCK) rounded up to 16, at least 16"),
    "word_stride": ("i64", "from word to word of a code, in words"),
}
FINISH: Arguments = {
    **STORE,
    "minima": ("*i16", "as popcount_minima or matrix_minima wrote it"),
    "run_minima": ("*i16", "[Q, num_blocks / 16], work"),
    "runs": ("*i32", "[Q, min(k, num_blocks / 16)], work"),
    "blocks": ("*i32", "[Q, min(k, num_blocks)], work"),
    "candidates": ("*i16", "[Q, min(k, num_blocks) * BLOCK], work"),
    "kept": ("*i32", "[Q, k], work"),
    "distance": ("*i32", "[Q, k], out, ascending; K + 1 where no code is"),
    "index": ("*i64", "[Q, k], out, ascending among equals; -1 where no code is"),
    "num_codes": MINIMA["num_codes"],
    "num_blocks": MINIMA["num_blocks"],
    "k": ("i32", "how many to find"),
    "radius": ("i32", "greatest distance, 0 to K"),
    "word_stride": MINIMA["word_stride"],
}
RERANK: Arguments = {
    "queries": ("*fp32", "[Q, D], rows side by side"),
    "vectors": ("*fp32", "[N, D], rows side by side"),
    "candidates": ("*i64", "[Q, C], rows of vectors, or -1"),
    "cosines": ("*fp32", "[Q, C], out; -inf where the candidate is -1"),
    "num_candidates": ("i32", "C"),
}
# Numbers that Triton may take to be multiples of 16; all pointers are.
MULTIPLES = ("readable", "num_blocks", "word_stride")
SCRATCH = (
    ("global_scratch", "null: no kernel here takes any"),
    ("profile_scratch", "null: no kernel here takes any"),
)
NOTES = (
    "Tensors are dense and row by row unless said otherwise; pointers are multiples of 16 bytes.",
    "A search is popcount_minima or matrix_minima (the same result, by products of int8 matrices), "
    "then finish, on one stream, all scoped or none.",
    "hash_keys is faster for up to 64 keys, hash_keys_batch for more.",
    "A launch of more than 48 KiB of shared memory first raises "
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES to shared_bytes.",
    "Files of a target that ends in 'a' run on that compute capability alone; the PTX of sm_80 is "
    "compiled by the driver for any later one.",
)


class Entry(NamedTuple):
    """What PTX says of its kernel."""

    name: str
    target: str
    parameters: tuple[str, ...]  # types, in order: "b32", "b64"
    threads: int


@dataclass(frozen=True)
class Plan:
    """One kernel to compile: the Triton function, what is known of it, and how it is launched."""

    kernel: Any
    arguments: Arguments
    constants: dict[str, Any]
    num_warps: int
    grid: tuple[str, str]


def compile_kernels(
    dim: int, bits: int, arches: Sequence[int] = ARCHES, names: Iterable[str] | None = None
) -> dict[str, bytes]:
    """Return the files of the kernels by their path, ``kernels/kernels.json`` among them.

    Args:
        dim: Width D of keys and vectors.
        bits: Bits K of a code.
        arches: Compute capabilities, 90 for 9.0.
        names: Kernels to compile; None is all.

    Raises:
        ValueError: Triton is not installed, or interprets; or a number is out of range.
    """
    if dim < 1 or bits not in CODE_BITS:
        raise ValueError(f"dim={dim}, bits={bits}: expected a width, and one of {CODE_BITS}")
    check_arches(arches)
    made = plans(dim, bits)
    files: dict[str, bytes] = {}
    kernels = []
    for name in made if names is None else names:
        for arch in arches:
            path = f"{FOLDER}/sm_{arch}/{name}"
            compiled = compile_plan(made[name], arch)
            files[f"{path}.ptx"] = compiled.asm["ptx"].encode()
            files[f"{path}.cubin"] = compiled.asm["cubin"]
            kernels.append({"kernel": name, **describe(made[name], compiled, path)})
    index = {"format": FORMAT, "dim": dim, "bits": bits, "notes": NOTES, "kernels": kernels}
    files[INDEX] = (json.dumps(index, indent=1) + "\n").encode()
    return files


def check_arches(arches: Sequence[int]) -> None:
    """Raise ValueError where kernels cannot be compiled for these compute capabilities here."""
    several = isinstance(arches, Sequence) and len(set(arches)) == len(arches)
    if not several or not all(type(arch) is int and arch in ARCHES for arch in arches):
        known = ", ".join(map(str, ARCHES))
        raise ValueError(f"export.kernels={arches!r}: give a list of some of {known}")
    if not arches:
        return
    if importlib.util.find_spec("triton") is None:
        raise ValueError("kernels cannot be compiled: triton is not installed; pip install triton")
    from keynet.hashing.triton_launch import INTERPRETED

    if INTERPRETED:
        raise ValueError("kernels cannot be compiled under TRITON_INTERPRET=1; unset it")


def plans(dim: int, bits: int) -> dict[str, Plan]:
    """Return every kernel by name."""
    from keynet.hashing import triton_finish, triton_keys, triton_minima
    from keynet.hashing import triton_search as search

    found = {}
    for name, code_bits in (
        ("hash_keys", triton_keys.FEW_BITS),
        ("hash_keys_batch", triton_keys.MANY_BITS),
    ):
        constants = {
            "D": dim, "K": bits, "TILE_B": triton_keys.HASH_TILE, "TILE_K": code_bits,
            "DEPTH": triton_keys.HASH_DEPTH,
        }  # fmt: skip
        grid = ("ceil(B / TILE_B)", "K / TILE_K")
        found[name] = Plan(
            triton_keys.hash_keys_kernel, HASH, constants, triton_keys.HASH_WARPS, grid
        )
    width = bits // 32
    for scoped in (False, True):
        end = "_scoped" if scoped else ""
        one = {
            "code_stride": 1, "W": width, "BLOCK": search.BLOCK_WORDS // width, "SCOPED": scoped,
            **({} if scoped else {"query_scopes": None, "code_scopes": None}),
        }  # fmt: skip
        tiles = {"TILE_Q": search.TILE_QUERIES, "TILE_N": search.TILE_CODES}
        last = {"TILE": search.SELECT_TILE, "RANKED": search.RANK_TILE}
        found |= {
            f"popcount_minima{end}": Plan(
                triton_minima.popcount_minima, MINIMA, one, 1,
                (f"min(num_blocks, {search.PROGRAMS} * multiprocessors); any number is right", "1"),
            ),
            f"matrix_minima{end}": Plan(
                triton_minima.matrix_minima, MINIMA, one | tiles, search.MATRIX_WARPS,
                (
                    f"min(num_blocks, {search.MATRIX_PROGRAMS} * multiprocessors); "
                    "any number is right",
                    "ceil(Q / TILE_Q)",
                ),
            ),
            f"finish{end}": Plan(
                triton_finish.finish, FINISH, one | last, search.SELECT_WARPS, ("Q", "1")
            ),
        }  # fmt: skip
    found["cosine_rerank"] = Plan(
        triton_keys.cosine_rerank_kernel, RERANK,
        {"D": dim, "TILE": triton_keys.RERANK_TILE, "DEPTH": triton_keys.RERANK_DEPTH},
        triton_keys.RERANK_WARPS, ("Q", "ceil(C / TILE)"),
    )  # fmt: skip
    return found


def compile_plan(plan: Plan, arch: int) -> Any:
    """Return what Triton compiled for a compute capability."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = plan.kernel.arg_names
    types = {
        name: "constexpr" if name in plan.constants else plan.arguments[name][0] for name in names
    }
    aligned = {
        (place,): [["tt.divisibility", ALIGNMENT]]
        for place, name in enumerate(names)
        if types[name].startswith("*") or (name in MULTIPLES and types[name] != "constexpr")
    }
    source = ASTSource(plan.kernel, types, constexprs=plan.constants, attrs=aligned)
    with _without_paths():
        return triton.compile(
            source, target=GPUTarget("cuda", arch, 32), options={"num_warps": plan.num_warps}
        )


def describe(plan: Plan, compiled: Any, path: str) -> dict[str, Any]:
    """Return how a compiled kernel is launched, as JSON."""
    entry = read_entry(compiled.asm["ptx"])
    metadata = compiled.metadata
    arguments = []
    for name in plan.kernel.arg_names:
        if name not in plan.constants:
            kind, meaning = plan.arguments[name]
            argument: dict[str, Any] = {"name": name, "type": TYPES[kind], "meaning": meaning}
            if kind.startswith("*") or name in MULTIPLES:
                argument["multiple_of"] = ALIGNMENT  # a pointer: of bytes
            arguments.append(argument)
    # Triton appends two pointers of its own.
    arguments += [{"name": name, "type": "void*", "meaning": text} for name, text in SCRATCH]
    expected = tuple(PTX_TYPES.get(argument["type"], "b64") for argument in arguments)
    scratch = (metadata.global_scratch_size, metadata.profile_scratch_size)
    assert (entry.parameters, scratch) == (expected, (0, 0)), "Triton launches kernels otherwise"
    return {
        "ptx": f"{path}.ptx",
        "cubin": f"{path}.cubin",
        "ptx_sha256": hashlib.sha256(compiled.asm["ptx"].encode()).hexdigest(),
        "cubin_sha256": hashlib.sha256(compiled.asm["cubin"]).hexdigest(),
        "target": entry.target,
        "entry": entry.name,
        "arguments": arguments,
        "constants": {
            name: int(value) for name, value in plan.constants.items() if value is not None
        },
        "grid": [*plan.grid, "1"],
        "threads": entry.threads,
        "num_warps": metadata.num_warps,
        "shared_bytes": metadata.shared,
    }


def described(kernel: dict[str, Any]) -> Entry:
    """Return what ``kernels.json`` says that the PTX of a kernel has."""
    parameters = tuple(PTX_TYPES.get(one["type"], "b64") for one in kernel["arguments"])
    return Entry(kernel["entry"], kernel["target"], parameters, kernel["threads"])


def read_entry(ptx: str) -> Entry:
    """Return name, target, parameter types and threads a block of the kernel in PTX.

    Raises:
        ValueError: It holds no kernel, or several.
    """
    entries = re.findall(r"\.entry\s+(\w+)\s*\(([^)]*)\)", ptx)
    target = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    threads = re.search(r"^\.(?:req|max)ntid\s+(\d+)", ptx, re.MULTILINE)
    if len(entries) != 1 or target is None or threads is None:
        raise ValueError(f"PTX with {len(entries)} kernels; expected one, its target and its size")
    [(name, parameters)] = entries
    types = re.findall(r"\.param\s+\.(\w)(\d+)", parameters)
    return Entry(name, target[1], tuple(f"b{size}" for _, size in types), int(threads[1]))


def read_cubin(cubin: bytes) -> tuple[str, set[str]]:
    """Return the target of a cubin, without the letter behind its number, and its kernels' names.

    Source: flags by version of the ABI as in LLVM's ``llvm/BinaryFormat/ELF.h``.

    Raises:
        ValueError: It is no cubin.
    """
    if len(cubin) < 64 or cubin[:6] != b"\x7fELF\x02\x01" or cubin[18:20] != CUDA:
        raise ValueError("no cubin")
    [flags] = struct.unpack_from("<I", cubin, 48)
    number = flags & 255 if cubin[8] < 8 else flags >> 8 & 255
    names = re.findall(rb"\0\.text\.(\w+)(?=\0)", cubin)
    return f"sm_{number}", {name.decode() for name in names}


def check_kernel(kernel: dict[str, Any], ptx: bytes, cubin: bytes) -> None:
    """Raise ValueError where files are not those that ``kernels.json`` says a kernel has."""
    entry, found = described(kernel), read_entry(ptx.decode())
    if found != entry:
        raise ValueError(f"{kernel['ptx']} has {found}; {INDEX} says {entry}")
    target, names = read_cubin(cubin)
    if target != entry.target.rstrip("af") or entry.name not in names:
        raise ValueError(
            f"{kernel['cubin']} has {', '.join(sorted(names)) or 'no kernel'} for {target}; "
            f"{INDEX} says {entry.name} for {entry.target}"
        )
    for kind, content in (("ptx", ptx), ("cubin", cubin)):
        digest = kernel.get(f"{kind}_sha256")  # exports made before it came have none
        if digest is not None and digest != hashlib.sha256(content).hexdigest():
            raise ValueError(f"{kernel[kind]} is another kernel's, by its digest in {INDEX}")


@contextmanager
def _without_paths() -> Iterator[None]:
    """Compile without line numbers: they would carry this machine's paths into the files."""
    import triton

    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True
        yield
