"""What a sweep searches, from options."""

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from keynet.training.search_space import SearchSpaceError, chosen_options, search_space


def test_options_are_fixed_or_searched() -> None:
    fixed, searched = search_space(
        [
            "experiment=demo",
            "fusion=choice(weighted_sum,residual_mlp)",
            "data.perturbed=0,0.5",
            "steps=range(100,401,150)",
            "module.weight_decay=interval(0,0.1)",
            "module.learning_rate=tag(log,interval(1e-4,3e-3))",
            "+data.note=[a,b]",
        ]
    )
    assert fixed == ["experiment=demo", "+data.note=[a,b]"]
    assert searched == {
        "fusion": CategoricalDistribution(["weighted_sum", "residual_mlp"]),
        "data.perturbed": CategoricalDistribution(["0", "0.5"]),
        "steps": IntDistribution(100, 400, step=150),
        "module.weight_decay": FloatDistribution(0.0, 0.1),
        "module.learning_rate": FloatDistribution(1e-4, 3e-3, log=True),
    }


@pytest.mark.parametrize(
    ("option", "greatest"),
    [("steps=range(1,9,2)", 7), ("steps=range(1,8,2)", 7), ("steps=range(0,3)", 2)],
)
def test_a_range_ends_before_its_end(option: str, greatest: int) -> None:
    _, searched = search_space([option])
    assert searched["steps"].high == greatest


def test_a_range_of_real_numbers_keeps_its_steps() -> None:
    _, searched = search_space(["aligner.dropout=range(0.0,0.5,0.125)"])
    assert searched["aligner.dropout"] == FloatDistribution(0.0, 0.375, step=0.125)


def test_what_a_trial_chose_becomes_options() -> None:
    assert chosen_options({"fusion": "qformer", "steps": 250}) == ["fusion=qformer", "steps=250"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["experiment=demo"], "nothing is searched"),
        (["run_dir=here", "steps=1,2"], "names the directories"),
        (["steps=1,2", "steps=3,4"], "searched twice"),
        (["steps="[:-1], "a=1,2"], "cannot be read"),
        (["x=tag(log,interval(0,1))"], "cannot be searched"),
        (["x=interval(2,1)"], "cannot be searched"),
        (["x=range(5,5)"], "cannot be searched"),
    ],
)
def test_what_cannot_be_searched_is_said(options: list[str], said: str) -> None:
    with pytest.raises(SearchSpaceError, match=said):
        search_space(options)
