"""Every option of the configuration fits what it builds; typos fail."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, InstantiationException, MissingConfigException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from keynet.evaluation.evaluate import evaluate
from keynet.models.key_model import KeyModel
from keynet.training.config import Config, register
from keynet.training.module import KeyModule

CONF = Path(__file__).parents[1] / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
OPTIONS = sorted(
    (str(path.parent.relative_to(CONF)), path.stem)
    for path in CONF.glob("*/**/*.yaml")
    if path.parent.name != "experiment" and path.stem != "base"  # shared by options, itself none
)
# SPEC T5; both towers, fusion and head.
BUDGETS = {"tiny": 8_200_000, "small": 22_100_000, "demo": 8_200_000}
OVER_FROZEN = 33_000_000  # Lite0 and MiniLM, and what is trained over them


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*overrides: str, name: str = "train") -> DictConfig:
    return compose(name, overrides=list(overrides))


def nodes(config: Any) -> Iterator[dict[str, Any]]:
    """All nodes with a ``_target_``, resolved, children first."""
    if isinstance(config, dict):
        for value in config.values():
            yield from nodes(value)
        if "_target_" in config:
            yield config


def resolved(config: DictConfig) -> dict[str, Any]:
    # ``run_dir`` names the time, which Hydra knows only in a run.
    return OmegaConf.to_container(
        OmegaConf.masked_copy(config, [k for k in config if k != "run_dir"]), resolve=True
    )  # type: ignore[return-value]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_builds_its_model(experiment: str) -> None:
    config = composed(f"experiment={experiment}", "encoder.image.pretrained=false")
    model = instantiate(config.model)
    assert isinstance(model, KeyModel)
    assert (model.key_dim, model.num_bits) == (config.key_dim, config.bits)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 1_000_000 < count <= BUDGETS.get(experiment.rpartition("_")[2], OVER_FROZEN)
    module = instantiate(config.module)(model=model, losses=instantiate(config.loss))
    assert isinstance(module, KeyModule)
    assert set(module.weights) == set(config.loss)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_what_an_experiment_sets_is_what_is_run(experiment: str) -> None:
    config = composed(f"experiment={experiment}")
    assert config.name == experiment
    recorded = OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml")
    choices = {next(iter(c)): c[next(iter(c))] for c in recorded.pop("defaults", [])}
    for choice, option in choices.items():
        group = choice.removeprefix("override /")
        chosen = composed(f"{group}={option}", f"experiment={experiment}")
        place = group.replace("/", ".")
        assert OmegaConf.select(config, place) == OmegaConf.select(chosen, place)
    for key, value in recorded.items():
        merged = OmegaConf.merge(config[key], value) if OmegaConf.is_config(value) else value
        assert config[key] == merged, key


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_names_its_command_in_its_first_lines(experiment: str) -> None:
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    command = f"# python train.py experiment={experiment}"
    assert any(f"{line} ".startswith(f"{command} ") for line in text[:3])


def test_the_bare_command_composes() -> None:
    assert composed().name == "custom"


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_its_names_are_those_of_its_constructor(
    group: str, option: str
) -> None:
    overrides = [f"{group}={option}"]
    if group == "distill/teachers":
        overrides = ["distill=packaged", f"+{group}@distill.teachers.another={option}"]
    elif group.startswith("distill/"):
        overrides.insert(0, "distill=packaged")
    config = resolved(composed(*overrides))
    found = [node for node in nodes(config) if not node["_target_"].startswith("pytorch_lightning")]
    assert len(found) > 8
    for node in found:
        names = {key: value for key, value in node.items() if not key.startswith("_")}
        signature = inspect.signature(get_object(node["_target_"]))
        if node.get("_partial_"):
            signature.bind_partial(**names)
        else:
            signature.bind(**names)


@pytest.mark.parametrize("option", ["quick", "full"])
def test_evaluation_options_are_read(option: str) -> None:
    known = set(inspect.signature(evaluate).parameters)
    assert set(composed(f"evaluation={option}").evaluation) <= known


def test_the_trainer_of_a_cpu_is_built() -> None:
    trainer = instantiate(composed("trainer=cpu").trainer, logger=False, enable_checkpointing=False)
    assert trainer.num_devices == 1


def test_every_field_of_the_root_is_set_and_known() -> None:
    config = composed()
    assert set(config) == set(Config.__dataclass_fields__)
    assert not [key for key in config if OmegaConf.is_missing(config, key)]


@pytest.mark.parametrize("data", ["emoji", "easy_vqa"])
def test_one_seed_and_one_size_reach_everything(data: str) -> None:
    config = resolved(composed(f"data={data}", "seed=7", "data.image_size=64", "batch_size=24"))
    assert config["data"]["seed"] == 7
    assert config["data"]["source"]["seed"] == 0  # the splits are the same in every run
    assert (config["data"]["image_size"], config["data"]["batch_size"]) == (64, 24)
    text = config["model"]["text_encoder"]
    assert text["vocab_size"] == config["data"]["vocab_size"]
    assert text["max_tokens"] == config["data"]["max_tokens"]


def test_a_typo_at_the_root_fails() -> None:
    with pytest.raises(ConfigCompositionException, match="stepss"):
        composed("stepss=3")


@pytest.mark.parametrize("override", ["encoder.text.widht=3", "data.source.visit=2"])
def test_a_typo_in_a_node_fails_when_composing(override: str) -> None:
    with pytest.raises(ConfigCompositionException, match=override.partition("=")[0]):
        composed(override)


def test_a_typo_added_to_a_node_fails_when_building() -> None:
    config = composed("+encoder.text.widht=3", "encoder.image.pretrained=false")
    with pytest.raises(InstantiationException, match="widht"):
        instantiate(config.model)


@pytest.mark.parametrize(
    "override", ["experiment=dmeo", "data=emojis", "fusion=gated", "trainer=tpu"]
)
def test_an_unknown_option_fails_and_lists_the_known(override: str) -> None:
    group = override.partition("=")[0]
    with pytest.raises(MissingConfigException, match=r"Available options") as error:
        composed(override)
    known = [option for where, option in OPTIONS if where == group]
    assert all(option in str(error.value) for option in known or EXPERIMENTS)


def test_a_value_of_another_type_fails() -> None:
    with pytest.raises(ConfigCompositionException, match="steps"):
        composed("steps=many")


@pytest.mark.parametrize("data", ["emoji", "easy_vqa"])
def test_the_evaluation_program_composes(data: str) -> None:
    config = composed(f"data={data}", "export=somewhere", name="evaluate")
    source = OmegaConf.to_container(config.data.source, resolve=True)
    assert source["seed"] == config.seed == 0  # type: ignore[index, call-overload]


def test_a_training_on_a_cpu_adds_in_one_order_whatever_its_threads() -> None:
    """What several requests share is gathered by index, whose gradient threads add as they come."""
    threads = torch.get_num_threads()
    values, weights = torch.randn(120, 256, requires_grad=True), torch.randn(1920, 256)
    index = torch.randint(120, (1920,))

    def gradient() -> torch.Tensor:
        found: torch.Tensor = torch.autograd.grad((values[index] * weights).sum(), values)[0]
        return found

    try:
        torch.set_num_threads(2)
        instantiate(composed("trainer=cpu", "experiment=demo").trainer, logger=False, max_epochs=1)
        first = gradient()
        assert all(torch.equal(gradient(), first) for _ in range(50))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
