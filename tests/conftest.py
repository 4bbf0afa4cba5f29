"""A data source of six flat colours, nothing to install; the commands of the documentation."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from re import DOTALL, MULTILINE, findall

import pytest
import torch
from hypothesis import settings
from PIL import Image, ImageDraw
from torch import nn

from aligners.fusion import WeightedSum
from aligners.mm_align import MMAlign
from keynet.models.hash_head import HashHead
from keynet.models.key_model import KeyModel
from keynet.models.text_tower import TextTower
from keynet.types import Request

settings.register_profile("seeded", derandomize=True)  # the same examples on every machine
settings.load_profile("seeded")

ROOT = Path(__file__).parents[1]
# What a documented training is run with: 48 drawings, and two steps.
SMALL = {
    "data": (
        "data=flickr8k", "data.source.train=drawings.tar", "data.source.test=null",
        "data.source.development=16",
    ),
    "run": (
        "name=smoke", "steps=2", "steps_per_checkpoint=1", "batch_size=24", "data.image_size=32",
        "evaluation.baseline_image_size=null", "evaluation.settings.visits=300",
        "evaluation.settings.orders=1", "evaluation.consistency_requests=16",
        "evaluation.latency_requests=4",
    ),
}  # fmt: skip

COLOURS = ("red", "green", "blue", "orange", "black", "white")
ASKED = ("what colour is it", "tell me the colour")


def png(colour: str, size: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, "PNG")
    return buffer.getvalue()


class ToySource:
    """Each colour in three sizes; two phrasings of its name, "is it C" with and without "not"."""

    name = "toy"
    attribution = ("Pictures: nobody.",)
    disjoint_phrasings = False

    def requests(self, split: str) -> list[Request]:
        made = []
        for number, colour in enumerate(COLOURS):
            other = COLOURS[(number + 1) % len(COLOURS)]
            for size in (8, 9, 10):
                asked = [(text, "colour()", colour) for text in ASKED]
                asked += [(f"is it {c}?", f"is({c})", str(c == colour)) for c in (colour, other)]
                asked += [(f"is it not {colour}?", f"not is({colour})", "False")]
                for text, intent, response in asked:
                    made.append(self._request(png(colour, size), text, colour, intent, response))
            made.append(self._request(png(colour, 11), None, colour, "describe", colour))
        made += [self._request(None, text, None, "colour() alone", "no picture") for text in ASKED]
        return made

    @staticmethod
    def _request(
        image: bytes | None, text: str | None, colour: str | None, intent: str, response: str
    ) -> Request:
        tags = {"family": intent.split("(")[0], "negated": str(int(intent.startswith("not")))}
        if colour is not None:
            tags["picture"] = colour
        group = f"{intent}|{response}"
        return Request(
            image=image, text=text, response=response, group=group, entity=colour, intent=intent,
            tags=tags,
        )  # fmt: skip


@pytest.fixture(scope="session")
def toy_source() -> ToySource:
    return ToySource()


class TinyImages(nn.Module):
    """One convolution over uint8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 12
        self.conv = nn.Conv2d(3, 12, 4, stride=4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(images.float() / 255).mean((2, 3))


@pytest.fixture(scope="session")
def tiny_key_model() -> Callable[[], KeyModel]:
    """What makes an untrained key model of pictures of 16 px and texts of 300 tokens."""

    def make() -> KeyModel:
        torch.manual_seed(0)
        return KeyModel(
            image_encoder=TinyImages(),
            text_encoder=TextTower(vocab_size=300, width=8, depth=1, heads=2, max_tokens=32),
            image_adapter=nn.Identity(),
            aligner=MMAlign(input_dims={"image": 12, "text": 8}, key_dim=8),
            fusion=WeightedSum(key_dim=8),
            hash_head=HashHead(key_dim=8, bits=64),
        )

    return make


@pytest.fixture(scope="session")
def documented() -> Callable[[str], list[list[str]]]:
    """What returns the commands of a page, each as its words: of bash blocks, comments left out."""

    def read(page: str) -> list[list[str]]:
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks = findall(r"^```bash\n(.*?)^```", text, MULTILINE | DOTALL)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        split = [groupby(shlex.split(line, comments=True), "&&".__eq__) for line in lines]
        return [list(words) for line in split for apart, words in line if not apart]

    return read


@pytest.fixture(scope="session")
def small() -> dict[str, tuple[str, ...]]:
    """Options with which a documented command ends soon: ``data`` of its own, and its ``run``."""
    return SMALL


@pytest.fixture
def walk(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """What runs a documented command in ``tmp_path``, where drawings.tar is: walk(words, options).

    Options take the place of those of the same name, and fail where the command does.
    """
    _write_drawings(tmp_path / "drawings.tar")

    def run(words: Sequence[str], options: Sequence[str]) -> subprocess.CompletedProcess[str]:
        program, *given = words
        launcher = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}[program]
        replaced = {option.partition("=")[0] for option in options}
        kept = [word for word in given if word.partition("=")[0] not in replaced]
        kept = [str(ROOT / word) if word == "train.py" else word for word in kept]
        paths = [str(ROOT), str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, *launcher, *kept, *options], cwd=tmp_path, capture_output=True,
            text=True, check=False, timeout=1200,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def _write_drawings(path: Path) -> None:
    """Write a shard of 48 shapes, each with five captions."""
    outlines = {"circle": ImageDraw.ImageDraw.ellipse, "square": ImageDraw.ImageDraw.rectangle}
    drawn = [(c, s, size) for c in COLOURS for s in outlines for size in (20, 28, 36, 44)]
    with tarfile.open(path, "w") as shard:
        for number, (colour, shape, size) in enumerate(drawn):
            picture, buffer = Image.new("RGB", (48, 48), "grey"), io.BytesIO()
            outlines[shape](ImageDraw.Draw(picture), (2, 2, size, size), fill=colour)
            picture.save(buffer, "PNG")
            captions = [
                f"a {colour} {shape}", f"one {shape} that is {colour}", f"{colour} {shape} on grey",
                f"a {shape} in {colour}", f"a {shape} of {size} pixels, {colour}",
            ]  # fmt: skip
            described = json.dumps({"captions": captions}).encode()
            for name, content in (("png", buffer.getvalue()), ("json", described)):
                member = tarfile.TarInfo(f"{number:03}.{name}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
