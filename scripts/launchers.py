"""Where a trial of a sweep runs: on this machine, on a Ray cluster, or as a Slurm job."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

REPORT, OUTPUT = "report.json", "output.txt"  # in a trial's folder
BEGIN = "# trial begins"  # a line of the output at each start

GRACE = 30  # seconds that a trial which is stopped has to end

# (command, folder, worker, stopped) -> exit status. Once ``stopped`` is set nobody reads it, and a
# trial that a Ctrl-C does not reach is ended.
Launch = Callable[[Sequence[str], Path, int, Event], int]


class LauncherError(ValueError):
    """A launcher that cannot start; the message says what to install or give."""


def run_here(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], cwd: str | None = None
) -> int:
    """Run a trial with its output in its folder, once nobody else runs it; return its exit status.

    A sweep that is killed leaves its trials running: each holds the lock of its folder, and who
    wants to go on with it waits for its end.
    """
    with (folder / "lock").open("a") as lock, (folder / OUTPUT).open("ab") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / REPORT).is_file():  # it ended meanwhile
            return 0
        output.write(f"{BEGIN}\n".encode())
        output.flush()
        with subprocess.Popen(
            command, stdout=output, stderr=output, env={**_environment(), **environment},
            pass_fds=[lock.fileno()], cwd=cwd,
        ) as training:  # fmt: skip
            try:
                return _status(training)
            except KeyboardInterrupt:  # as Ray cancels; an interrupt itself its processes block
                training.terminate()
                raise


def _status(training: subprocess.Popen[bytes]) -> int:
    """Wait in steps: Ray's interrupt is seen between two of them alone."""
    while True:
        try:
            return training.wait(1)
        except subprocess.TimeoutExpired:
            continue


def _environment() -> dict[str, str]:
    """Return this process's environment, for a trial that says in one line what was wrong."""
    return {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}


def local(workers: int, processes: int) -> Launch:
    """Return a launcher on this machine; each worker has its share of GPUs, or else of cores."""
    import torch

    gpus = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else [str(number) for number in range(gpus)]
    if 0 < gpus < workers * processes:
        raise LauncherError(
            f"{workers} workers of {processes} processes need {workers * processes} GPUs, this "
            f"machine has {gpus}; give fewer --workers"
        )
    threads = max(1, (os.cpu_count() or 1) // (workers * processes))

    def launch(command: Sequence[str], folder: Path, worker: int, stopped: Event) -> int:
        mine = devices[worker * processes : (worker + 1) * processes]
        share = {"CUDA_VISIBLE_DEVICES": ",".join(mine)} if gpus else {}
        cores = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        return run_here(command, folder, cores | share)

    return launch


def on_ray(workers: int, processes: int) -> Launch:
    """Return a launcher on the Ray cluster at RAY_ADDRESS, or one of this machine without it."""
    try:
        import ray
    except ImportError as error:
        raise LauncherError("Ray is not installed: pip install 'keynet-cache[ray]'") from error
    address = os.environ.get("RAY_ADDRESS")
    ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    found = ray.cluster_resources()
    if address is None and found.get("CPU", 0) < processes:
        raise LauncherError(
            f"a trial of {processes} processes takes {processes} cores, Ray found "
            f"{found.get('CPU', 0):.0f} on this machine; give fewer --processes"
        )
    wanted: dict[str, Any] = {"num_cpus": processes}
    if found.get("GPU"):
        wanted = {"num_cpus": processes, "num_gpus": processes}
    remote = ray.remote(max_retries=0, **wanted)(run_here)

    def launch(command: Sequence[str], folder: Path, worker: int, stopped: Event) -> int:
        mine = _environment()
        mine.pop("CUDA_VISIBLE_DEVICES", None)  # there Ray gives the trial its own
        trial = remote.remote(list(command), folder, mine, os.getcwd())
        while not ray.wait([trial], timeout=1)[0]:
            if stopped.is_set():
                ray.cancel(trial)
                # One that waits for another's lock hears nothing: Ray ends it with this process.
                ray.wait([trial], timeout=GRACE)
                raise LauncherError("stopped")
        return int(ray.get(trial))

    return launch


def on_slurm(workers: int, processes: int) -> Launch:
    """Return a launcher of Slurm jobs of one node, with a GPU for each process.

    SBATCH_PARTITION and its like are Slurm's own settings.
    """
    try:
        import submitit
    except ImportError as error:
        raise LauncherError(
            "submitit is not installed: pip install 'keynet-cache[slurm]'"
        ) from error

    def launch(command: Sequence[str], folder: Path, worker: int, stopped: Event) -> int:
        executor = submitit.AutoExecutor(folder=folder / "slurm", cluster="slurm")
        executor.update_parameters(
            name="keynet-trial", gpus_per_node=processes, cpus_per_task=processes * 4,
            timeout_min=24 * 60,
        )  # fmt: skip
        return int(executor.submit(run_here, list(command), folder, {}).result())

    return launch


LAUNCHERS: dict[str, Callable[[int, int], Launch]] = {
    "local": local, "ray": on_ray, "slurm": on_slurm,
}  # fmt: skip


def command_of(options: Sequence[str], processes: int) -> list[str]:
    """Return the command of one training; several processes are one torchrun."""
    train = str(Path(__file__).parents[1] / "train.py")
    if processes == 1:
        return [sys.executable, train, *options]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={processes}", train, "trainer=ddp", *options]
