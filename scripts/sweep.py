"""Search options of training: python -m scripts.sweep experiment=demo 'fusion=choice(a,b)'

Options that are choices, ranges or intervals (Hydra's words for them) are searched by Optuna, the
others are those of every trial. A trial is one run of train.py, in a process of its own and a
directory of its own under OUT/trials (--processes of more than 1 are one torchrun). Stopped or
killed, the same command goes on: ended trials stay, and those that were running go on.
"""

import argparse
import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if importlib.util.find_spec("optuna") is None:
    sys.exit("error: sweeps need Optuna: pip install 'keynet-cache[sweep]'")

import optuna
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from keynet.cache.index_lock import FolderLock
from keynet.evaluation.report import write_whole
from keynet.evaluation.trial_report import write_trials
from keynet.training.config import explained, register
from keynet.training.search_space import chosen_options, search_space
from scripts.launchers import LAUNCHERS, command_of
from scripts.trials import SweepError, Trials

CONF = Path(__file__).parents[1] / "conf"
SETTINGS = "sweep.json"
FOLD = "data.source.fold"


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.sweep", description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    parser.add_argument("options", nargs="+", help="of train.py; sweeps are searched")
    parser.add_argument("--trials", type=int, default=20, help="that end well, in all")
    parser.add_argument("--workers", type=int, default=1, help="trials at a time")
    parser.add_argument("--processes", type=int, default=1, help="of each trial, by torchrun")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="local")
    parser.add_argument("--metric", default="p_chr_auc", help="of report.json")
    parser.add_argument("--subset", default="all", help="of that metric")
    parser.add_argument("--bits", type=int, help="of the code; without, the float key")
    parser.add_argument("--minimise", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--out", type=Path, default=Path("outputs/sweep"))
    return parser


def sweep(args: argparse.Namespace) -> None:
    """Search, print, write."""
    for name in ("trials", "workers", "processes"):
        if getattr(args, name) < 1:
            raise SweepError(f"--{name} {getattr(args, name)}: expected 1 or more")
    args.out = args.out.resolve()
    fixed, searched = search_space(args.options)
    cfg = _composed([*fixed, *(f"{key}={_any_of(one)}" for key, one in searched.items())])
    fold = OmegaConf.select(cfg, FOLD)
    if FOLD in searched or fold not in ("dev", None):
        raise SweepError(
            f"a sweep chooses by what it measures, and {FOLD}=test is what is reported; give "
            f"{FOLD}=dev, and train the best options with fold=test"
        )
    if fold is None:
        print("this data has no development fold: options are tuned on its test split; report "
              "them on other data", file=sys.stderr)  # fmt: skip
    with locked(args.out):
        study = opened(args, searched)
        launch = LAUNCHERS[args.launcher](args.workers, args.processes)
        try:
            Trials(args, study, fixed, searched, launch).run()
        finally:
            tried = study.get_trials(deepcopy=False)
            write_trials(args.out, tried, args.metric, " ".join(["python", *sys.argv]))
        best = study.best_trial
    options = [*fixed, *chosen_options(best.params)]
    print(f"best: trial {best.number}, {args.metric} {best.value:.4g}")
    print("      " + shlex.join(command_of(options, args.processes)))
    print(f"report: {args.out / 'report.html'}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other sweeps out of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, "sweep", lambda _: None)
    try:
        yield
    finally:
        lock.release()


def opened(args: argparse.Namespace, searched: Mapping[str, BaseDistribution]) -> optuna.Study:
    """Return the study of a folder; a folder of another sweep is refused."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = ("options", "metric", "subset", "bits", "minimise", "processes")
    settings = {name: getattr(args, name) for name in names}
    kept = args.out / SETTINGS
    if not kept.is_file():
        write_whole(kept, json.dumps(settings, indent=1).encode())
    elif json.loads(kept.read_text("utf-8")) != settings:
        raise SweepError(f"{args.out} holds another sweep, see {kept}; give another --out")
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(args.out / "journal.log"))),
        study_name="sweep",
        direction="minimize" if args.minimise else "maximize",
        load_if_exists=True,
    )
    # Not the seed alone: a sampler that starts afresh would draw what it drew before.
    study.sampler = TPESampler(seed=args.seed + len(study.trials))
    return study


def _composed(options: Sequence[str]) -> DictConfig:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", list(options))


def _any_of(distribution: BaseDistribution) -> Any:
    choices = getattr(distribution, "choices", None)
    return choices[0] if choices else getattr(distribution, "low", None)


if __name__ == "__main__":
    explained(lambda: sweep(arguments().parse_intermixed_args()))
