"""The trials of a sweep: some at a time, each a run of train.py, until enough have ended well."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import optuna
from omegaconf import OmegaConf
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from keynet.evaluation.report import read_report
from keynet.evaluation.trial_report import FOLDER, WHY
from keynet.training.search_space import chosen_options
from scripts.launchers import BEGIN, OUTPUT, REPORT, Launch, command_of

FAILURES = 3  # one after another, after which no more trials are started


class SweepError(ValueError):
    """A sweep that cannot go on; the message says what to do."""


class Trials:
    """Runs trials.

    Args:
        args: Of the command line of scripts.sweep.
        study: What was tried before, and what to try next.
        fixed: Options of every trial.
        searched: What is searched.
        launch: Runs a command.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        study: optuna.Study,
        fixed: Sequence[str],
        searched: Mapping[str, BaseDistribution],
        launch: Launch,
    ) -> None:
        self._args, self._study, self._launch = args, study, launch
        self._fixed, self._searched = list(fixed), dict(searched)
        self._lock = threading.Lock()
        self._running, self._ended, self._failures = 0, 0, 0
        self._start, self._stopped = monotonic(), threading.Event()

    def run(self) -> None:
        """Return when enough trials have ended well.

        Raises:
            SweepError: Trials fail one after another.
        """
        self._take_up()
        with ThreadPoolExecutor(self._args.workers) as pool:
            working = [pool.submit(self._work, number) for number in range(self._args.workers)]
            try:
                for one in working:
                    one.result()
            except KeyboardInterrupt:  # which the trials of this terminal get, too
                self._stopped.set()
                self._say("stopping; trials that run as Slurm jobs are waited for")
                raise SweepError("stopped; the same command goes on") from None
        if self._failures >= FAILURES:
            last = self._of(TrialState.FAIL)[-1]
            raise SweepError(
                f"{FAILURES} trials failed one after another; the last one, "
                f"{self._folder(last)}, said: {last.user_attrs[WHY]}; mend it, and the same "
                "command goes on"
            )

    def _take_up(self) -> None:
        """Let trials that were cut off go on: as new ones, with their choices and directories."""
        waiting = {trial.user_attrs[FOLDER] for trial in self._of(TrialState.WAITING)}
        for trial in self._of(TrialState.RUNNING):
            folder = trial.user_attrs.get(FOLDER)
            if folder is not None and folder not in waiting:
                self._study.enqueue_trial(trial.params, {FOLDER: folder})
            self._study.tell(trial.number, state=TrialState.FAIL)

    def _work(self, worker: int) -> None:
        while (trial := self._next()) is not None:
            chosen, folder = chosen_options(trial.params), self._folder(trial)
            self._say(f"trial {trial.number}: {' '.join(chosen)}")
            folder.mkdir(parents=True, exist_ok=True)
            options = [*self._fixed, *chosen, f"run_dir={folder.resolve()}"]
            try:
                command = command_of(options, self._args.processes)
                status = self._launch(command, folder, worker, self._stopped)
                value, why = self._figure(folder, status)
            except SweepError:  # no trial will do better
                self._stopped.set()
                raise
            except Exception as error:  # a launcher's own, as of a job that was cancelled
                value, why = None, " ".join(f"{type(error).__name__}: {error}".split())
            if self._stopped.is_set():
                return
            with self._lock:
                self._tell(trial, value, why)

    def _next(self) -> Trial | None:
        """Return the next trial; None when there are enough."""
        with self._lock:
            enough = len(self._of(TrialState.COMPLETE)) + self._running >= self._args.trials
            if enough or self._stopped.is_set() or self._failures >= FAILURES:
                return None
            trial = self._study.ask(self._searched)
            if FOLDER not in trial.user_attrs:
                trial.set_user_attr(FOLDER, f"{trial.number:04d}")
            self._running += 1
            return trial

    def _tell(self, trial: Trial, value: float | None, why: str) -> None:
        self._running -= 1
        self._ended += 1
        if value is None:
            self._failures += 1
            trial.set_user_attr(WHY, why)
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._failures = 0
            self._study.tell(trial, value)
        left = max(0, self._args.trials - len(self._of(TrialState.COMPLETE)))
        minutes = (monotonic() - self._start) / self._ended * left / 60
        told = f"failed: {why}" if value is None else f"{self._args.metric} {value:.4g}"
        self._say(f"trial {trial.number}: {told}; {left} to go, about {minutes:.0f} min")

    def _figure(self, folder: Path, status: int) -> tuple[float | None, str]:
        """Return what a trial reached, or why it reached nothing."""
        if status:
            lines = (folder / OUTPUT).read_text("utf-8", "replace").strip().splitlines()
            last = lines[-1] if lines and not lines[-1].startswith(BEGIN) else "without a word"
            return None, last if status == 1 else f"exit status {status}: {last}"
        args, name = self._args, OmegaConf.load(folder / "config.yaml").get("name")
        wanted = (name, args.metric, args.subset, args.bits)
        found = [
            one for one in read_report(folder / REPORT)
            if (one.method, one.metric, one.subset, one.bits) == wanted
        ]  # fmt: skip
        if len(found) != 1:
            records = [one for one in read_report(folder / REPORT) if one.method == name]
            names = sorted({one.metric for one in records if one.subset == args.subset})
            subsets, bits = sorted({one.subset for one in records}), {one.bits for one in records}
            raise SweepError(
                f"{folder / REPORT} has {len(found)} figures of metric {args.metric}, subset "
                f"{args.subset}, bits {args.bits}; it has the metrics {', '.join(names) or 'none'} "
                f"there, the subsets {', '.join(subsets)}, the bits {bits}; give another --out too"
            )
        return found[0].value, f"{args.metric} is n/a: {found[0].note}"

    def _folder(self, trial: Trial | FrozenTrial) -> Path:
        path: Path = self._args.out / "trials" / trial.user_attrs[FOLDER]
        return path

    def _of(self, state: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(state,))

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
