"""The whole road once, and once stopped on the way, as a user would: in a process of its own."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RUNS = "outputs/smoke/easy_vqa"
TINY = (
    "experiment=demo", "data=easy_vqa", "name=smoke", "steps=2", "steps_per_checkpoint=1",
    "batch_size=24", "data.image_size=32", "data.source.fold=dev", "encoder.image.pretrained=false",
    "evaluation.baseline_image_size=null", "evaluation.settings.visits=300",
    "evaluation.settings.orders=1", "evaluation.consistency_requests=16",
    "evaluation.latency_requests=4",
)  # fmt: skip

slow = pytest.mark.slow


def command(*overrides: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), *overrides]


def train(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*overrides), cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a run was made."""
    folder = tmp_path_factory.mktemp("train")
    done = train(folder, *TINY, f"run_dir={RUNS}/first")
    assert done.returncode == 0, done.stderr
    assert "oracle" in done.stdout
    assert "easy-VQA by Victor Zhou" in done.stdout
    return folder


def test_a_run_leaves_report_export_and_latest(trained: Path) -> None:
    latest = trained / RUNS / "latest"
    assert latest.is_symlink()
    assert latest.resolve() == trained / RUNS / "first"
    found = {path.name for path in latest.iterdir()}
    assert {"report.json", "report.html", "export", "checkpoints", "config.yaml"} <= found
    report = json.loads((latest / "report.json").read_text())
    assert report["schema"] == 1
    assert "train.py" in report["command"]
    ours = [r for r in report["records"] if r["method"] == "smoke"]
    assert {r["bits"] for r in ours} >= {None, 64, 128, 256}
    assert {r["data"] for r in ours} == {"easy_vqa_dev"}
    assert {"p_chr_auc", "consistency_codes", "latency_ms_p50"} <= {r["metric"] for r in ours}
    assert "easy-VQA by Victor Zhou" in (latest / "report.html").read_text()


def test_every_format_of_a_run_gives_the_codes_of_its_model(trained: Path) -> None:
    run = RUNS + "/first"
    program = [sys.executable, "-m", "scripts.parity", f"run={trained / run}", "data=easy_vqa"]
    done = subprocess.run(
        [*program, "data.source.fold=dev", "requests=24"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = json.loads((trained / run / "export" / "manifest.json").read_text())
    found = {one["variant"]: one["flipped_certain_bits"] for one in manifest["parity"]}
    exact = ("batch 1", "batch 7", "2 threads", "model.ts.pt", "model.ts.pt, frozen", "model.pt2")
    assert [found[name] for name in exact] == [0] * 6
    assert {"bf16", "fp16"} <= set(found)
    assert "a search radius of" in done.stdout


def test_the_export_loads_and_encodes(trained: Path) -> None:
    from keynet import Request, load_key_model

    encoder = load_key_model(trained / RUNS / "latest" / "export")
    keys = encoder.encode(
        [Request(text="is there a circle?"), Request(text="what shape is present?")]
    )
    assert len({str(key) for key in keys}) == 2


def test_the_export_tells_what_it_was_trained_on_and_nothing_judged_was(trained: Path) -> None:
    from data.easy_vqa import EasyVQA

    numbers = np.fromfile(trained / RUNS / "latest" / "export" / "trained_on.u64", "<u8").tolist()
    pictures = {r.image for r in EasyVQA(seed=0, fold="dev").requests("train")}
    digests = (hashlib.sha256(picture).digest()[:8] for picture in pictures)
    assert set(numbers) >= {int.from_bytes(digest, "little") for digest in digests}
    assert numbers == sorted(set(numbers))
    records = json.loads((trained / RUNS / "latest" / "report.json").read_text())["records"]
    left_out = {(r["split"], r["subset"]): r["value"] for r in records if r["metric"] == "left_out"}
    assert left_out == {("calibration", "all"): 0, ("test", "all"): 0, ("test", "captions"): 0}


@slow
def test_the_same_command_gives_the_same_codes(trained: Path) -> None:
    done = train(trained, *TINY, f"run_dir={RUNS}/second")
    assert done.returncode == 0, done.stderr
    manifests = [
        json.loads((trained / RUNS / name / "export" / "manifest.json").read_text())
        for name in ("first", "second")
    ]
    assert manifests[0]["key_space"] == manifests[1]["key_space"]  # with the weights' fingerprint
    assert (trained / RUNS / "latest").resolve().name == "second"


def test_another_configuration_in_the_same_directory_is_one_line(trained: Path) -> None:
    done = train(trained, *TINY, "seed=1", f"run_dir={RUNS}/first")
    assert done.returncode == 1
    (line,) = [li for li in done.stderr.splitlines() if li.startswith("error:")]
    assert "belongs to another configuration: seed was 0 and is 1" in line
    assert "Traceback" not in done.stderr


@slow
def test_a_stopped_run_goes_on(trained: Path) -> None:
    """Stopped by Ctrl-C; what it then makes is what it would have made."""
    long = ("steps=80", f"run_dir={RUNS}/stopped")
    process = subprocess.Popen(
        command(*TINY, *long), cwd=trained, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    stopped = trained / RUNS / "stopped"
    deadline = time.monotonic() + 120
    while not (stopped / "checkpoints" / "last.ckpt").exists() and time.monotonic() < deadline:
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    assert "step 1 of 80" in output, output
    assert "step 80 of 80" not in output, "the first checkpoint came with the last step"
    assert process.returncode == 1
    assert f"{RUNS}/stopped" in output.splitlines()[-1]  # how to go on
    assert "Traceback" not in output
    assert not (stopped / "export").exists()
    assert train(trained, *TINY, *long).returncode == 0
    assert train(trained, *TINY, "steps=80", f"run_dir={RUNS}/whole").returncode == 0
    spaces = [
        json.loads((trained / RUNS / name / "export" / "manifest.json").read_text())["key_space"]
        for name in ("stopped", "whole")
    ]
    assert spaces[0] == spaces[1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("experiment=dmeo",), "dmeo"),
        (("stepss=3",), "stepss"),
        (("+encoder.text.widht=3", "data=easy_vqa"), "widht"),
        (("batch_size=7", "data=easy_vqa"), "batch_size=7"),
        (("data=easy_vqa", "data.source.fold=tset"), "fold='tset'"),
        (("data=easy_vqa", "run_dir=file/run"), "file/run"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_without_a_traceback(
    tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    done = train(tmp_path, *overrides)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("outputs/*/*/latest"))


@pytest.mark.parametrize(
    ("options", "overrides", "message"),
    [
        (
            ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
            ("trainer=ddp",),
            "add --standalone or --rdzv-id=NAME",
        ),
        (("--standalone",), ("trainer=cpu",), "trains in 1 processes and 2 were started"),
        (("--standalone",), ("trainer=ddp", "batch_size=25"), "such as 26"),
    ],
)
@slow
def test_two_processes_that_cannot_train_say_why(
    tmp_path: Path, options: tuple[str, ...], overrides: tuple[str, ...], message: str
) -> None:
    given = [option for option in TINY if option.split("=")[0] not in " ".join(overrides)]
    program = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node=2"]
    done = subprocess.run(
        [*program, str(ROOT / "train.py"), *given, *overrides, "distill=none"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert lines
    assert all(message in line for line in lines)
