from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import distill.bridge
from distill.bridge import BridgeTeacher
from distill.teacher import Teacher, TeacherError
from keynet.types import Request

Make = Callable[..., Any]
LATENT, IMAGE, TEXT = 12, 24, 20
TRAINED, HELD_OUT = 300, 100


@pytest.fixture
def make_bridge(make_teacher: Make) -> Make:
    def make(**changes: Any) -> BridgeTeacher:
        settings: dict[str, Any] = {
            "image": make_teacher("eye", dim=IMAGE, modalities=("image",)),
            "text": make_teacher("tongue", dim=TEXT, seed=1, modalities=("text",)),
            "dim": 16, "epochs": 15, "batch_size": 100, "learning_rate": 2e-2,
        }  # fmt: skip
        return BridgeTeacher(name="bridge", **(settings | changes))

    return make


def planted(captions: int = 1, noise: float = 0.05) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures and captions that are two linear maps of one latent, off centre, with noise."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    count = TRAINED + HELD_OUT
    latent, to_image, to_text = normal(count, LATENT), normal(LATENT, IMAGE), normal(LATENT, TEXT)
    of = torch.arange(count).repeat_interleave(captions)
    image = latent @ to_image + noise * normal(count, IMAGE) + 3
    text = latent[of] @ to_text + noise * normal(len(of), TEXT) - 2
    return image, text, torch.stack([of, torch.arange(len(of))], 1)


def recall_at_1(bridge: BridgeTeacher, image: Tensor, text: Tensor) -> float:
    near = (bridge.project("text", text) @ bridge.project("image", image).T).argmax(1)
    return float((near == torch.arange(len(image))).float().mean())


def test_a_planted_linear_relation_is_found_and_holds_for_new_pairs(make_bridge: Make) -> None:
    image, text, pairs = planted()
    bridge = make_bridge()
    assert not bridge.trained
    bridge.fit(image, text, pairs[:TRAINED])
    assert bridge.trained
    new = slice(TRAINED, None)
    assert recall_at_1(bridge, image[new], text[new]) > 0.95
    assert recall_at_1(bridge, image[new], text[new].roll(1, 0)) < 0.1
    for modality, rows in (("image", image), ("text", text)):
        found = bridge.project(modality, rows)
        assert found.shape == (len(rows), 16)
        torch.testing.assert_close(found.norm(dim=1), torch.ones(len(rows)))
        assert not found.requires_grad
    assert 0.01 < bridge.temperature < 0.2
    assert bridge.temperature != make_bridge().temperature  # it is learned


def test_pairs_of_several_captions_in_any_order(make_bridge: Make) -> None:
    image, text, pairs = planted(captions=3)
    order = torch.randperm(3 * TRAINED, generator=torch.Generator().manual_seed(0))
    bridge = make_bridge(epochs=15)
    bridge.fit(image, text, pairs[: 3 * TRAINED][order])
    new = slice(TRAINED, None)
    assert recall_at_1(bridge, image[new], text[3 * TRAINED :: 3]) > 0.95


def test_a_batch_holds_a_picture_once_with_one_of_its_captions(
    make_bridge: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, text, pairs = planted(captions=3)
    seen: list[tuple[Tensor, Tensor]] = []
    contrast = distill.bridge._Head.contrast

    def recorded(self: Any, pictures: Tensor, captions: Tensor, same: Tensor) -> Tensor:
        seen.append((pictures, captions))
        return contrast(self, pictures, captions, same)

    monkeypatch.setattr(distill.bridge._Head, "contrast", recorded)
    order = torch.randperm(3 * TRAINED, generator=torch.Generator().manual_seed(0))
    make_bridge(epochs=3).fit(image, text, pairs[: 3 * TRAINED][order])
    used = set()
    for pictures, captions in seen:
        numbers = torch.cdist(pictures, image).argmin(1)
        assert len(numbers.unique()) == 100
        of = torch.cdist(captions, text).argmin(1)
        assert torch.equal(of // 3, numbers)
        used |= set((of % 3).tolist())
    assert used == {0, 1, 2}


def test_one_caption_of_two_pictures_is_right_for_both(make_bridge: Make) -> None:
    image, text, pairs = planted()
    bridge = make_bridge(epochs=1)
    bridge.fit(image, text, pairs[:TRAINED])
    rows, captions = image[:3], text[:3]  # of unlike vectors, so that it can be told
    same = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]).bool()
    logits = bridge.project("image", rows) @ bridge.project("text", captions).T / bridge.temperature
    total = 0.0
    for side in (logits.log_softmax(1), logits.T.log_softmax(1)):
        total -= float(side[:2, :2].sum() / 2 + side[2, 2])
    assert float(bridge.head.contrast(rows, captions, same)) == pytest.approx(total / 6, rel=1e-4)


def test_where_the_embeddings_are_centred_does_not_matter(make_bridge: Make) -> None:
    image, text, pairs = planted()
    found = []
    for offset in (0.0, 40.0):
        bridge = make_bridge(epochs=2)
        bridge.fit(image + offset, text - offset, pairs[:TRAINED])
        found.append(bridge.project("image", image + offset))
    torch.testing.assert_close(found[1], found[0], atol=1e-2, rtol=0)


def test_a_seed_gives_one_head_and_leaves_the_global_one(make_bridge: Make) -> None:
    image, text, pairs = planted()
    found = []
    for seed, globally in ((0, 0), (0, 1), (1, 0)):
        bridge = make_bridge(seed=seed, epochs=2)
        torch.manual_seed(globally)
        before = torch.get_rng_state()
        bridge.fit(image, text, pairs[:TRAINED])
        assert torch.equal(torch.get_rng_state(), before)
        found.append(bridge.fingerprint)
    assert found[0] == found[1] != found[2]


def test_the_fingerprint_is_of_head_and_parts(make_bridge: Make, make_teacher: Make) -> None:
    image, text, pairs = planted()
    other = make_teacher("eye", dim=IMAGE, seed=5, modalities=("image",))
    bridges = [make_bridge(epochs=2), make_bridge(epochs=3), make_bridge(epochs=2, image=other)]
    for bridge in bridges:
        bridge.fit(image, text, pairs[:TRAINED])
    assert len({bridge.fingerprint for bridge in bridges}) == 3


def test_a_head_is_saved_and_loaded(make_bridge: Make, tmp_path: Path) -> None:
    image, text, pairs = planted()
    bridge = make_bridge(epochs=3)
    bridge.fit(image, text, pairs[:TRAINED])
    bridge.save(tmp_path / "bridge.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["bridge.safetensors"]
    loaded = make_bridge(weights=tmp_path / "bridge.safetensors")
    assert loaded.trained
    assert (loaded.fingerprint, loaded.temperature) == (bridge.fingerprint, bridge.temperature)
    assert torch.equal(loaded.project("text", text), bridge.project("text", text))


@pytest.mark.parametrize("size", [None, 0, 20, -1])
def test_a_file_that_is_missing_or_damaged(make_bridge: Make, tmp_path: Path, size: int) -> None:
    bridge, path = make_bridge(epochs=1), tmp_path / "bridge.safetensors"
    if size is not None:
        bridge.fit(*planted()[:2], planted()[2][:TRAINED])
        bridge.save(path)
        path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TeacherError, match=r"teacher bridge: weights .* cannot be read"):
        make_bridge(weights=path)


def test_a_file_of_other_widths_or_not_finite(make_bridge: Make, tmp_path: Path) -> None:
    bridge, path = make_bridge(epochs=1), tmp_path / "bridge.safetensors"
    bridge.fit(*planted()[:2], planted()[2][:TRAINED])
    bridge.save(path)
    with pytest.raises(TeacherError, match=r"do not fit eye and tongue at width 8: align\."):
        make_bridge(weights=path, dim=8)
    state = load_file(path)
    save_file({"foreign": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(TeacherError, match=r"do not fit eye and tongue.*foreign"):
        make_bridge(weights=tmp_path / "foreign.safetensors")
    state["image_mean"][3] = float("nan")
    save_file(state, path)
    with pytest.raises(TeacherError, match=r"image_mean in .* is not finite; train it again"):
        make_bridge(weights=path)


@pytest.mark.parametrize("count", [0, 7])
def test_too_few_pairs(make_bridge: Make, count: int) -> None:
    image, text, pairs = planted(captions=3)
    message = rf"bridge: the data has {count} pictures with captions, at least 8.*~distill.teachers"
    with pytest.raises(TeacherError, match=message):
        make_bridge().fit(image, text, pairs[: 3 * count])


def test_parts_that_lack_a_modality(make_bridge: Make, make_teacher: Make) -> None:
    blind = make_teacher("blind", modalities=("text",))
    with pytest.raises(TeacherError, match="its image part blind has no image"):
        make_bridge(image=blind)
    with pytest.raises(TeacherError, match="its text part mute has no text"):
        make_bridge(text=make_teacher("mute", modalities=("image",)))


def test_before_the_training_it_cannot_be_asked(make_bridge: Make) -> None:
    bridge = make_bridge()
    for use in (lambda: bridge.encode([Request(text="caption 1")]), lambda: bridge.fingerprint):
        with pytest.raises(TeacherError, match=r"bridge has no head yet: give distill\.teachers"):
            use()


def test_it_is_a_teacher(make_bridge: Make) -> None:
    image, text, pairs = planted()
    bridge = make_bridge(epochs=1)
    bridge.fit(image, text, pairs[:TRAINED])
    teacher: Teacher = bridge
    teacher.to("cpu", torch.float32)
    found = teacher.encode(
        [Request(image=b"picture 1"), Request(text="caption 1"), Request(image=b"2", text="2")]
    )
    assert teacher.modalities == ("image", "text")
    assert found.image is not None and found.text is not None
    torch.testing.assert_close(found.image.norm(dim=1), torch.tensor([1.0, 0, 1]))
    torch.testing.assert_close(found.text.norm(dim=1), torch.tensor([0.0, 1, 1]))
    expected = bridge.project("image", bridge.image.encode([Request(image=b"picture 1")]).image)
    torch.testing.assert_close(found.image[:1], expected)
