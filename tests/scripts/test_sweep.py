"""Sweeps: trials by Optuna, each a training of its own, that survive failures and kills."""

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from hydra import compose, initialize_config_dir

from keynet.evaluation.report import read_report
from keynet.training.config import register
from keynet.training.search_space import search_space
from scripts import sweep as program
from scripts.launchers import BEGIN, LAUNCHERS, LauncherError, command_of, local
from scripts.trials import SweepError

ROOT = Path(__file__).parents[2]
# In the place of train.py: takes its options, and may fail or be alone for a while.
TRAINING = """
import fcntl, json, sys, time
from pathlib import Path
given = dict(option.split("=", 1) for option in sys.argv[1:])
run = Path(given["run_dir"])
with (run / "alone").open("a+") as alone:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    alone.write("started\\n"); alone.flush()
    time.sleep(float(given.get("+wait", 0)))
    while Path(given.get("+while", "/nowhere")).exists():
        time.sleep(0.1)
    rate = float(given["module.learning_rate"])
    if given.get("+fail") == "all" or given.get("+fail") == "some" and rate > 0.002:
        sys.exit("error: it would not learn")
    (run / "config.yaml").write_text("name: demo\\n")
    record = {"data": "emoji", "split": "dev", "subset": "all", "method": "demo", "bits": None}
    record |= {"metric": "p_chr_auc", "value": 1 - abs(rate - 0.001)}
    record |= {"low": None, "high": None, "n": 1, "unit": "share"}
    written = run / "written.json"
    written.write_text(json.dumps({"schema": 1, "records": [record]}))
    written.rename(run / "report.json")
"""
DRIVER = """
import sys
from scripts import sweep, trials
trials.command_of = lambda options, processes: [sys.executable, {training!r}, *options]
sweep.sweep(sweep.arguments().parse_intermixed_args(sys.argv[1:]))
"""
RATE = "module.learning_rate=interval(0.0005,0.003)"
COMMON = ["experiment=demo", "data.source.fold=dev", RATE]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    training = tmp_path / "training.py"
    training.write_text(TRAINING)
    driver = DRIVER.format(training=str(training))
    return [sys.executable, "-c", driver, "--out", str(tmp_path / "out"), *COMMON]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment()
    )


def environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def interrupted(command: list[str], begun: Callable[[], bool], said: str) -> None:
    """Run a sweep until ``begun``, then interrupt it as a terminal does."""
    first = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        # A shell that runs tests in the background lets its children ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not begun():
        time.sleep(0.05)
        assert first.poll() is None
    os.killpg(first.pid, signal.SIGINT)
    _, told = first.communicate(timeout=120)
    assert said in told


def starts(out: Path) -> list[int]:
    files = sorted(out.glob("trials/*/alone"))
    return [file.read_text().count("started") for file in files]


def test_six_trials_over_two_workers_name_the_best_command(
    command: list[str], tmp_path: Path
) -> None:
    command += ["--trials", "6", "--workers", "2"]
    done = run(command)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert starts(out) == [1] * 6
    values = {record.subset: record.value for record in read_report(out / "report.json")}
    best = max(values, key=lambda folder: values[folder] or 0)
    assert f"best: trial {int(best)}, p_chr_auc {values[best]:.4g}" in done.stdout
    assert "train.py experiment=demo data.source.fold=dev module.learning_rate=0.00" in done.stdout
    page = (out / "report.html").read_text()
    assert "<svg" in page and "mathdefault" not in page

    again = run(command)  # nothing is left to do, and nothing is done
    assert again.returncode == 0, again.stderr
    assert starts(out) == [1] * 6
    more = run([*command, "--trials", "8"])
    assert more.returncode == 0, more.stderr
    assert starts(out) == [1] * 8
    rates = {record.method for record in read_report(out / "report.json")}
    assert len(rates) == 8  # none is drawn twice


def test_a_killed_sweep_goes_on_where_it_was(command: list[str], tmp_path: Path) -> None:
    command += ["+wait=1.5", "--trials", "4", "--workers", "2"]
    out = tmp_path / "out"
    first = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)
    while len(starts(out)) < 3:  # two are running, of which the first two have ended
        time.sleep(0.05)
        assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = run(command)  # at once, while the killed sweep's trainings are running on
    assert done.returncode == 0, done.stderr
    assert starts(out) == [1] * 4  # each trained once, and nobody beside another
    assert len(read_report(out / "report.json")) == 4


def test_a_trial_that_fails_is_told_and_left(command: list[str], tmp_path: Path) -> None:
    done = run([*command, "+fail=some", "--trials", "5", "--seed", "3"])
    assert done.returncode == 0, done.stderr
    records = read_report(tmp_path / "out" / "report.json")
    failed = [record for record in records if record.value is None]
    assert len(records) - len(failed) == 5
    assert failed and {record.note for record in failed} == {"error: it would not learn"}
    assert "failed: error: it would not learn" in done.stderr


def test_a_figure_that_no_report_has_ends_it_at_the_first_trial(
    command: list[str], tmp_path: Path
) -> None:
    done = run([*command, "--metric", "p_chr_acu", "--trials", "6", "--workers", "2"])
    assert done.returncode == 1
    assert "it has the metrics p_chr_auc there, the subsets all" in done.stderr
    assert len(starts(tmp_path / "out")) <= 2


def test_trials_that_all_fail_end_the_sweep(command: list[str]) -> None:
    done = run([*command, "+fail=all"])
    assert done.returncode == 1
    assert "3 trials failed one after another" in done.stderr
    assert "said: error: it would not learn" in done.stderr


def test_an_interrupt_ends_it_and_the_same_command_goes_on(
    command: list[str], tmp_path: Path
) -> None:
    command += ["+wait=1", "--trials", "2"]
    out = tmp_path / "out"
    interrupted(command, lambda: bool(starts(out)), "stopped; the same command goes on")
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert len(read_report(out / "report.json")) == 2


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that choose Ray, on this machine; its token is kept in ``tmp_path``."""
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return ["--launcher", "ray"]


@pytest.mark.slow
def test_ray_runs_six_trials_over_two_workers(
    command: list[str], ray: list[str], tmp_path: Path
) -> None:
    done = run([*command, *ray, "--trials", "6", "--workers", "2"])
    assert done.returncode == 0, done.stderr
    assert starts(tmp_path / "out") == [1] * 6
    assert "best: trial " in done.stdout
    values = [record.value for record in read_report(tmp_path / "out" / "report.json")]
    assert len(values) == 6 and None not in values


@pytest.mark.slow
def test_an_interrupt_ends_the_trials_of_ray_and_the_same_command_goes_on(
    command: list[str], ray: list[str], tmp_path: Path
) -> None:
    command += [*ray, "--trials", "2", "--workers", "2"]
    out, lasting = tmp_path / "out", tmp_path / "lasting"
    lasting.touch()
    command.append(f"+while={lasting}")
    interrupted(command, lambda: len(starts(out)) == 2, "stopped; the same command goes on")
    for trial in out.glob("trials/*"):
        with (trial / "lock").open() as lock:  # no process has it any more
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lasting.unlink()
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert starts(out) == [2, 2]


@pytest.mark.slow
def test_a_killed_sweep_on_ray_goes_on(command: list[str], ray: list[str], tmp_path: Path) -> None:
    command += [*ray, "+wait=3", "--trials", "2", "--workers", "2"]
    out = tmp_path / "out"
    first = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)
    while len(starts(out)) < 2:
        time.sleep(0.05)
        assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert len(read_report(out / "report.json")) == 2


@pytest.mark.slow
def test_trials_that_ray_has_no_cores_for_are_refused(
    command: list[str], ray: list[str], tmp_path: Path
) -> None:
    done = run([*command, *ray, "--processes", "4096"])
    assert done.returncode == 1
    assert "a trial of 4096 processes takes 4096 cores, Ray found" in done.stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--trials", "0", *COMMON], "--trials 0: expected 1 or more"),
        (["experiment=demo", RATE], "data.source.fold=test is what is reported"),
        (["experiment=demo", "data.source.fold=choice(dev,test)"], "is what is reported"),
        (["experiment=demo", "data.source.fold=dev"], "nothing is searched"),
    ],
)
def test_what_cannot_be_swept_is_said(argv: list[str], said: str, tmp_path: Path) -> None:
    args = program.arguments().parse_intermixed_args([*argv, "--out", str(tmp_path / "out")])
    with pytest.raises(ValueError, match=said):
        program.sweep(args)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"options": ["steps=1,2"]}))
    args = program.arguments().parse_intermixed_args([*COMMON, "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="holds another sweep"):
        program.sweep(args)


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    args = program.arguments().parse_intermixed_args([*COMMON, "--out", str(tmp_path)])
    with program.locked(tmp_path), pytest.raises(ValueError, match="in use by a sweep"):
        program.sweep(args)


def test_the_sweep_of_the_documentation_composes() -> None:
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith("python -m scripts.sweep")]
    args = program.arguments().parse_intermixed_args(shlex.split(line)[3:])
    assert (args.trials, args.workers) == (6, 2)
    fixed, searched = search_space(args.options)
    assert sorted(searched) == ["aligner.dropout", "module.learning_rate"]
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        assert compose("train", fixed).data.source.fold == "dev"


def test_what_a_launcher_raises_is_the_failure_of_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(command: object, folder: Path, worker: int, stopped: Event) -> int:
        raise RuntimeError("job 7 was cancelled")

    monkeypatch.setitem(LAUNCHERS, "local", lambda workers, processes: launch)
    args = program.arguments().parse_intermixed_args([*COMMON, "--out", str(tmp_path)])
    with pytest.raises(SweepError, match="said: RuntimeError: job 7 was cancelled"):
        program.sweep(args)
    assert len(read_report(tmp_path / "report.json")) == 3


def test_several_processes_are_one_torchrun() -> None:
    command = command_of(["steps=50"], 2)
    assert command[1:5] == [
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
    ]  # fmt: skip
    assert command[5:] == [str(ROOT / "train.py"), "trainer=ddp", "steps=50"]


def test_workers_share_gpus_and_none_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    launch = local(2, 2)
    told = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    for worker in (0, 1):
        assert launch([sys.executable, "-c", told], tmp_path, worker, Event()) == 0
    told_by = (tmp_path / "output.txt").read_text().splitlines()
    assert told_by == [BEGIN, "0,1", BEGIN, "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")  # a scheduler's
    assert local(2, 2)([sys.executable, "-c", told], tmp_path, 1, Event()) == 0
    assert (tmp_path / "output.txt").read_text().splitlines()[-1] == "6,7"
    with pytest.raises(LauncherError, match="3 workers of 2 processes need 6 GPUs"):
        local(3, 2)


@pytest.mark.parametrize(("name", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_launcher_that_is_not_installed_says_how(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LauncherError, match=rf"keynet-cache\[{name}\]"):
        LAUNCHERS[name](1, 1)
