"""The commands of docs/own-data.md compose, and its line is read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from data.chat_lines import read_line
from keynet.training.config import register

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes(command: str) -> None:
    python, *words = shlex.split(command)
    assert python == "python"
    if words[0] == "-m":
        program, words = words[1].replace(".", "/") + ".py", words[2:]
    else:
        program, words = words[0], words[1:]
    assert (ROOT / program).exists()
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose(Path(program).stem, overrides=words)
    assert OmegaConf.to_container(cfg.data.source, resolve=True)


def test_the_line_that_is_shown_is_read() -> None:
    written = re.findall(r"```json\n(.*?)\n```", TEXT)
    found = read_line(
        written[0].encode(), lambda url: ("digest", Path(url)), model=None, shared=("user",)
    )
    assert (found.text, found.response, found.image) == (
        "What is this?", "A cat.", Path("pictures/17.jpg"),
    )  # fmt: skip
    assert found.unread == ()
