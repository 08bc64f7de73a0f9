"""Trackers keep what a run tells them, read back from the real libraries; none can hold a run up."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_sdk import ConfigError, Episode
from areal_sdk.testing import check_plugin, make_episode
from areal_sdk_trackers import link
from areal_sdk_trackers.link import Link
from areal_sdk_trackers.observers import Mlflow, TensorBoard, Tracker, Trackio, Wandb
from areal_sdk_trackers.samples import MAX_TEXT, Samples, conversation

SETTINGS = {"model": "tiny", "run": {"steps": 2, "dir": "runs"}, "rewards": {"exact_match": 1.0}}


def play(tracker: Tracker, run_dir: Path) -> None:
    """A run of two steps with an evaluation, as the hooks tell it."""
    tracker.on_run_start("my-run", str(run_dir), SETTINGS)
    for step in (1, 2):
        for number in range(20):
            tracker.on_episode(make_episode(f"said {step} {number}"), "")
        tracker.on_step(step, {"batch/reward": step / 4, "train/loss": -0.5})
    for number in range(4):
        tracker.on_eval_episode("after", "eval", make_episode(f"measured {number}"))
    tracker.on_evaluation("after", "eval", 2, {"success": 0.75, "reward": 0.8, "tasks": 4.0})
    tracker.on_run_end({"steps": 2.0, "version": 2.0})


@pytest.fixture
def no_warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], None]:
    def check() -> None:
        assert [record.getMessage() for record in caplog.records] == []

    return check


def test_tensorboard_has_scalars_and_texts(tmp_path: Path, no_warnings: Callable[[], None]) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    play(TensorBoard(samples=3, samples_every=2), tmp_path)
    no_warnings()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    tags = read.Tags()
    assert {"batch/reward", "train/loss"} <= set(scalars(read))
    assert scalars(read)["batch/reward"] == [(1, 0.25), (2, 0.5)]
    assert scalars(read)["eval/success"] == [(2, 0.75)]
    texts = {tag.removesuffix("/text_summary") for tag in tags["tensors"]}
    assert {"settings", "evaluations", "samples/train", "samples/eval", "summary"} <= texts
    (samples,) = read.Tensors("samples/eval")
    text = samples.tensor_proto.string_val[0].decode()
    assert text.count("assistant: measured") == 3


def scalars(read: Any) -> dict[str, list[tuple[int, float]]]:
    """Scalars, as TensorBoard itself reads them; new ones arrive as tensors."""
    from tensorboard.util import tensor_util

    found = {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    for tag in read.Tags()["tensors"]:
        events = read.Tensors(tag)
        array = tensor_util.make_ndarray(events[0].tensor_proto)
        if array.dtype.kind == "f":
            found[tag] = [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in events]
    return found


def test_wandb_offline_keeps_metrics_settings_and_tables(
    tmp_path: Path, no_warnings: Callable[[], None]
) -> None:
    needs("wandb")
    play(Wandb(mode="offline", tags=("test",), samples_every=2), tmp_path)
    no_warnings()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-my-run.wandb")
    records = json.loads(read_wandb(file))
    values: dict[str, Any] = {}
    for row in records["history"]:
        values |= row
    assert values["batch/reward"] == 0.5
    assert values["eval/success"] == 0.75
    assert [row["batch/reward"] for row in records["history"] if "batch/reward" in row] == [
        0.25,
        0.5,
    ]
    assert values["samples/eval/nrows"] == 4
    assert values["samples/train/nrows"] == 8
    assert values["evaluations/nrows"] == 1
    assert records["config"]["run"]["steps"] == 2
    assert records["exit_code"] == 0


READ_WANDB = """
import json, struct, sys, warnings
warnings.simplefilter("ignore")
from wandb.proto import wandb_internal_pb2 as pb

BLOCK = 32768  # records are pieces in blocks, as in LevelDB's log
def records(data, at=7):
    whole = b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield whole
            whole = b""

found = {"history": [], "config": {}, "exit_code": None}
for data in records(open(sys.argv[1], "rb").read()):
    record = pb.Record(); record.ParseFromString(data)
    match record.WhichOneof("record_type"):
        case "history":
            rows = {}
            for item in record.history.item:
                rows[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
            found["history"].append(rows)
        case "run":
            for item in record.run.config.update:
                found["config"][item.key] = json.loads(item.value_json)
        case "exit":
            found["exit_code"] = record.exit.exit_code
print(json.dumps(found))
"""


def read_wandb(file: Path) -> str:
    """The records of wandb's file, in a process that may import wandb."""
    command = [sys.executable, "-c", READ_WANDB, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_mlflow_keeps_a_run_in_a_database_and_goes_on_after_a_resume(
    tmp_path: Path, no_warnings: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for _ in range(2):
        play(Mlflow(uri=uri, experiment="games", samples_every=2), tmp_path)
    no_warnings()
    program = (
        "import json, sys, mlflow\n"
        "client = mlflow.MlflowClient(tracking_uri=sys.argv[1])\n"
        "experiment = client.get_experiment_by_name('games').experiment_id\n"
        "(run,) = client.search_runs([experiment])\n"
        "history = client.get_metric_history(run.info.run_id, 'batch/reward')\n"
        "names = [file.path for file in client.list_artifacts(run.info.run_id)]\n"
        "print(json.dumps([run.data.metrics, run.data.params, run.info.status,\n"
        "    [(one.step, one.value) for one in history], names]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, uri], check=True, capture_output=True, text=True
    )
    metrics, params, status, history, names = json.loads(done.stdout.splitlines()[-1])
    assert (metrics["train/loss"], metrics["eval/success"]) == (-0.5, 0.75)
    assert params["run.steps"] == "2"
    assert status == "FINISHED"
    assert sorted(history) == [[1, 0.25], [1, 0.25], [2, 0.5], [2, 0.5]]
    assert {"settings.json", "evaluations.json", "samples", "summary.json"} <= set(names)


def test_trackio_keeps_metrics_in_its_database(
    tmp_path: Path, no_warnings: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    play(Trackio(project="games", samples_every=2), tmp_path)
    no_warnings()
    program = (
        "import json\n"
        "from trackio.sqlite_storage import SQLiteStorage\n"
        "print(json.dumps(SQLiteStorage.get_logs('games', 'my-run'), default=str))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    rewards = [row["batch/reward"] for row in rows if "batch/reward" in row]
    assert rewards == [0.25, 0.5]
    assert any(row.get("eval/success") == 0.75 for row in rows)


def needs(library: str) -> None:
    pytest.importorskip(library, reason=f'pip install "areal-sdk-trackers[{library}]"')


def test_an_absent_library_is_an_error_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trackio, "library", "no_such_tracker")
    with pytest.raises(ConfigError, match=r'pip install "areal-sdk-trackers\[no_such_tracker\]"'):
        Trackio()


LIBRARIES = {
    "fails": "raise RuntimeError('no network')",
    "hangs": "import time\ntime.sleep(3600)",
    "fails_later": (
        "def begin(**_): return Backend()\n"
        "class Backend:\n"
        "    def metrics(self, **_): raise OSError('gone')\n"
        "    def end(self, **_): pass\n"
    ),
    "writes": (
        "import json\n"
        "def begin(*, run_dir, **_): return Backend(open(run_dir + '/seen', 'a'))\n"
        "class Backend:\n"
        "    def __init__(self, file): self.file = file\n"
        "    def metrics(self, **event): print(json.dumps(event), file=self.file, flush=True)\n"
        "    def end(self, *, values): print(json.dumps(values), file=self.file, flush=True)\n"
    ),
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Link]:
    """A link to a library of ours, beside the real ones."""
    import areal_sdk_trackers

    site = tmp_path / "site"
    site.mkdir()
    hook = (
        "import importlib, sys\n"
        "import areal_sdk_trackers\n"
        f"areal_sdk_trackers.__path__.append({str(site)!r})\n"
    )
    (site / "sitecustomize.py").write_text(hook)
    package = str(Path(areal_sdk_trackers.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), package]))
    for name, source in LIBRARIES.items():
        (site / f"to_{name}.py").write_text(source)

    def make(name: str, *, finish_s: float = 30.0) -> Link:
        made = Link(name, log=tmp_path / "logs" / f"{name}.log", finish_s=finish_s)
        made.send({"kind": "begin", "name": "r", "run_dir": str(tmp_path), "options": {}})
        return made

    return make


def test_a_tracker_that_fails_is_said_once_with_what_it_wrote(
    library: Callable[..., Link], caplog: pytest.LogCaptureFixture
) -> None:
    failing = library("fails")
    failing._process.wait()
    for step in range(10):
        failing.send({"kind": "metrics", "step": step, "values": {}})
    failing.close({"kind": "end", "values": {}})
    (said,) = [record.getMessage() for record in caplog.records]
    assert "tracker fails" in said
    assert "the run is not affected" in said
    assert "RuntimeError: no network" in said


def test_a_tracker_that_hangs_holds_nothing_up_and_is_killed(
    library: Callable[..., Link],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "MAX_WAITING", 4)
    hanging = library("hangs", finish_s=0.5)
    values = {f"metric {number}": 0.5 for number in range(5000)}  # more than a pipe holds
    slowest = 0.0
    for step in range(50):
        began = time.thread_time()
        hanging.send({"kind": "metrics", "step": step, "values": values})
        slowest = max(slowest, time.thread_time() - began)
    hanging.close({"kind": "end", "values": {}})
    assert hanging._process.returncode == -signal.SIGKILL
    said = [record.getMessage() for record in caplog.records]
    assert sum("slower than the run" in line for line in said) == 1
    assert sum("did not finish within 0.5 s" in line for line in said) == 1
    assert sum("events were left out" in line for line in said) == 1
    assert slowest < 0.1  # CPU of the caller: an event is only put into a queue


def test_an_event_that_fails_again_and_again_is_said_at_the_end(
    library: Callable[..., Link], caplog: pytest.LogCaptureFixture
) -> None:
    later = library("fails_later")
    later.send({"kind": "metrics", "step": 1, "values": {}})
    later.close({"kind": "end", "values": {}})
    (said,) = [record.getMessage() for record in caplog.records]
    assert "failed (exit code 3)" in said


def test_a_run_that_is_killed_ends_its_tracker(
    library: Callable[..., Link], tmp_path: Path
) -> None:
    """The killed run's end of the pipe is closed, and no last event came."""
    events: list[dict[str, Any]] = [
        {"kind": "begin", "run_dir": str(tmp_path)},
        {"kind": "metrics", "step": 1, "values": {"a": 1.0}},
    ]
    subprocess.run(
        [sys.executable, "-m", "areal_sdk_trackers.process", "writes"],
        input="".join(json.dumps(event) + "\n" for event in events).encode(),
        check=True,
        timeout=60,
    )
    lines = (tmp_path / "seen").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "values": {"a": 1.0}}, None]


def test_samples_are_of_all_episodes_and_not_of_the_first() -> None:
    kept = Samples(8)
    for number in range(400):
        kept.add(make_episode(f"said {number}"), "")
    numbers = [int(row["text"].rsplit(" ", 1)[1]) for row in kept.rows()]
    assert len(set(numbers)) == 8
    assert max(numbers) > 100


def test_a_conversation_is_text_with_calls_and_an_end() -> None:
    episode: Episode = make_episode("x" * 20_000)
    text = conversation(episode)
    assert len(text) < MAX_TEXT + 100
    assert "characters left out]" in text
    assert text.startswith("user: ")


@pytest.mark.parametrize("options", [{"samples": -1}, {"samples_every": 0}])
def test_options_are_checked_before_the_run(options: dict[str, int]) -> None:
    needs("tensorboard")
    with pytest.raises(ConfigError, match="give at least 0 and 1"):
        TensorBoard(**options)


async def test_the_installed_plugin_keeps_every_contract() -> None:
    assert "observer 'wandb'" in await check_plugin("areal-sdk-trackers")
