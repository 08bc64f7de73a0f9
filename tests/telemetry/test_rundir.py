"""The run directory is whole whenever somebody reads it."""

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.telemetry.episode_index import task_key
from areal_sdk.telemetry.episode_log import EpisodeWriter, find_episode, list_episodes
from areal_sdk.telemetry.files import JsonLines, read_json_lines, write_atomically
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.telemetry.metrics import MetricsLog, Rate, read_history, read_steps
from areal_sdk.telemetry.run_dir import RunDir, without_secrets
from areal_sdk.trajectory import Credit, Trajectory
from areal_sdk.types import (
    Episode,
    ErrorKind,
    Exclusion,
    FinishReason,
    ForkReason,
    Outcome,
    Task,
    Turn,
)


def episode(number: int, *, size: int = 4) -> Episode:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    turns = (
        Turn((1, 2), (3,), (-0.5,), (7,), call, ({"role": "user", "content": "2+2?"},)),
        Turn(
            tuple(range(size)),
            (4, 5),
            (-0.1, -0.2),
            (7, 8),
            {"role": "assistant", "content": "4"},
            finish_reason=FinishReason.LENGTH,
            parent=0,
            fork=ForkReason.EDITED,
            excluded=Exclusion.GREEDY,
        ),
    )
    task = Task(f"task-{number}", {"question": "2+2?", "answer": 4})
    outcome = Outcome.scored(0.5, success=False, turn_rewards=(None, 0.5), metrics={"calls": 1})
    return Episode(f"episode-{number}", task, turns, outcome, group="g", duration_s=1.5)


TRAJECTORY = Trajectory(
    "episode-1", "task-1", (1, 2, 3), (False, False, True), (0.0, 0.0, -0.5),
    (-1, -1, 7), (1.0, 1.0, 1.0), (-1, -1, 0), 0.5,
)  # fmt: skip


def test_an_episode_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    writer = EpisodeWriter(run.episodes)
    failed = Episode("bad", Task("t"), (), Outcome.failed(ErrorKind.REWARD, "reward 'math': hung"))
    writer.write(episode(1), trajectories=[TRAJECTORY], version=8)
    writer.write(failed, dropped=DropReason.ERROR_REWARD, split="eval")
    found = run.find_episode("episode-1")
    assert found.episode == episode(1)
    assert found.trajectories == (TRAJECTORY,)
    assert (found.version, found.dropped, found.split) == (8, None, "train")
    found = run.find_episode("bad")
    assert found.episode == failed
    assert (found.dropped, found.split) == (DropReason.ERROR_REWARD, "eval")
    assert [summary.id for summary in run.list_episodes()] == ["bad", "episode-1"]
    assert next(run.list_episodes()).error == "reward 'math': hung"
    writer.close()


def test_a_trained_episode_names_its_step_and_its_advantage(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    writer = EpisodeWriter(run.episodes, file_bytes=1)  # one episode a file
    for number in (1, 2, 3):
        writer.write(episode(number))
    marks = {"episode-1": Credit(0.5, (None, 0.5)), "episode-3": Credit()}
    writer.mark_trained(marks, step=7)
    writer.write(episode(1))  # the same task again, after a resume: not trained yet
    writer.close()
    listed = [(e.id, e.step, e.advantage, e.turn_advantages) for e in run.list_episodes()]
    assert listed == [
        ("episode-1", None, None, ()),
        ("episode-3", 7, None, ()),
        ("episode-2", None, None, ()),
        ("episode-1", 7, 0.5, (None, 0.5)),
    ]
    found = run.find_episode("episode-3")
    assert (found.step, found.credit) == (7, Credit())
    found = run.find_episode("episode-2")
    assert (found.step, found.credit) == (None, None)


def test_an_episode_that_is_dropped_while_it_waits_says_why(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    writer = EpisodeWriter(run.episodes, file_bytes=1)  # one episode a file
    for number in (1, 2, 3):
        writer.write(episode(number))
    writer.mark_dropped(DropReason.STALE, ["episode-1", "episode-3"])
    writer.write(episode(1))  # the same task again, after a resume: it waits
    writer.close()
    assert [(e.id, e.dropped) for e in run.list_episodes()] == [
        ("episode-1", None),
        ("episode-3", DropReason.STALE),
        ("episode-2", None),
        ("episode-1", DropReason.STALE),
    ]
    assert run.find_episode("episode-3").dropped is DropReason.STALE
    assert run.find_episode("episode-2").dropped is None


def test_an_evaluation_names_the_step_whose_weights_it_measured(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path)
    writer.write(episode(1), version=3)
    writer.write(episode(2), version=3, split="eval", measures=4)
    writer.close()
    assert [(e.split, e.step, e.measures) for e in list_episodes(tmp_path)] == [
        ("eval", None, 4),
        ("train", None, None),
    ]


def test_a_task_has_one_key_whatever_its_id_its_split_and_its_source(tmp_path: Path) -> None:
    asked = {"question": "2+2?", "answer": 4, "level": {"b": 1, "a": 2}}
    turned = {"level": {"a": 2, "b": 1}, "answer": 4, "question": "2+2?"}
    same = [
        Task("train-1", asked),
        Task("eval-9", turned),
        Task("sums/9#2", {**turned, "source": "sums"}),
        Task("sums/9#3", {**turned, "family": "sums"}),
        Task("sums/9#4", {**turned, "answer": np.int64(4)}),
    ]
    others = [Task("train-1", {**asked, "answer": 5}), Task("train-1"), Task("train-2")]
    writer = EpisodeWriter(tmp_path)
    for task in [*same, *others]:
        writer.write(Episode("e", task, (), Outcome.scored(1.0)))
    writer.close()
    keys = [e.task_key for e in list_episodes(tmp_path)][::-1]
    assert len({*keys[: len(same)]}) == 1
    assert len({*keys}) == 1 + len(others)
    assert keys[0] == "6bc247a66382", "what an earlier run has written"


def test_numbers_of_numpy_and_keys_that_are_no_text_are_part_of_a_tasks_key() -> None:
    board = {"board": {1: "x", 2: np.arange(3)}}
    assert task_key(Task("train-1", board)) == task_key(Task("eval-9", {**board}))
    assert task_key(Task("train-1", board)) != task_key(Task("train-1", {"board": {1: "x"}}))


def test_an_agent_that_changes_the_data_of_its_task_does_not_change_the_key(
    tmp_path: Path,
) -> None:
    task = Task("t", {"question": "2+2?", "tried": []})
    EpisodeRequest("e", task)
    key = task.key
    task.data["tried"].append("3")
    writer = EpisodeWriter(tmp_path)
    for one in (task, pickle.loads(pickle.dumps(task))):
        writer.write(Episode("e", one, (), Outcome.scored(1.0)))
    writer.close()
    assert {e.task_key for e in list_episodes(tmp_path)} == {key}
    assert key != task_key(replace(task)), "the changed data ask something else"


def test_a_task_whose_data_are_no_json_is_known_by_its_id(tmp_path: Path) -> None:
    """The text of an object would be another one in the next run."""
    writer = EpisodeWriter(tmp_path)
    for data in ({"made": object()}, {"made": object()}, _bottomless()):
        writer.write(Episode("e", Task("t", data), (), Outcome.scored(1.0)))
    writer.close()
    assert len({e.task_key for e in list_episodes(tmp_path)}) == 1


def test_the_index_has_the_beginning_of_the_last_answer(tmp_path: Path) -> None:
    call = {"function": {"name": "look", "arguments": '{"at": 1}'}}
    answers: list[dict[str, Any]] = [
        {"content": "It is\n  4. " + 400 * "x"},
        {"content": None, "tool_calls": [call]},
        {"content": [{"type": "text"}]},
        {"tool_calls": [None, "look", {"function": "look"}, {"function": {"name": 5}}]},
        {"tool_calls": 7},
    ]
    writer = EpisodeWriter(tmp_path)
    for answer in answers:
        turn = Turn((1,), (2,), (-0.5,), (0,), {"role": "assistant", **answer})
        writer.write(Episode("e", Task("t"), (turn,), Outcome.scored(1.0)))
    writer.write(Episode("e", Task("t"), (), Outcome.scored(1.0)))
    writer.close()
    nothing, *odd, parts, called, said = [e.text for e in list_episodes(tmp_path)]
    assert odd == ["", "-> 5()"]
    assert (nothing, parts, called) == ("", "[{'type': 'text'}]", '-> look({"at": 1})')
    assert said.startswith("It is 4. xxx")
    assert len(said) == 160


def _bottomless() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["itself"] = data
    return data


@pytest.mark.parametrize(
    ("data", "stored"),
    [
        ({"answer": 10**30}, {"answer": "1" + 30 * "0"}),
        ({"text": "half \ud800", "\udfff": 1}, {"text": "half \ufffd", "\ufffd": 1}),
        ({("a", 1): [{2**70}]}, {"('a', 1)": [[str(2**70)]]}),
        ({"large": 10**5000}, None),
        (_bottomless(), None),
    ],
    ids=["integer", "surrogate", "key", "large", "cycle"],
)
def test_an_episode_with_a_task_that_is_no_json_is_written_all_the_same(
    tmp_path: Path, data: dict[Any, Any], stored: dict[str, Any] | None
) -> None:
    writer = EpisodeWriter(tmp_path)
    writer.write(Episode("e", Task("t", data), (), Outcome.scored(1.0)))
    writer.close()
    record = find_episode(tmp_path, "e")
    assert record is not None
    assert record.episode.outcome.reward == 1.0
    if stored is not None:
        assert record.episode.task.data == stored


def test_writing_goes_on_after_a_crash_in_the_middle_of_a_line(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    log = MetricsLog(run.metrics)
    log.log("step", {"step": 1, "loss": 0.5})
    log.close()
    with run.metrics.open("ab") as file:
        file.write(b'{"kind": "step", "st' + b"x" * 100_000)
    assert [event["step"] for event in run.read_metrics()] == [1]
    log = MetricsLog(run.metrics)
    log.log("step", {"step": 2, "loss": float("nan")})
    log.log("eval", {"step": 2, "success": 1.0})
    log.close()
    assert run.metrics.stat().st_size < 1000
    assert [event["step"] for event in run.read_metrics(kind="step")] == [1, 2]
    assert run.read_metrics(kind="step")[1]["loss"] is None


def test_a_step_done_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step, loss in [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35)]:
        log.log("step", {"step": step, "loss": loss})
    log.close()
    assert [e["loss"] for e in read_steps(tmp_path / "metrics.jsonl")] == [0.1, 0.25, 0.35]


def test_steps_that_a_resume_undid_are_no_part_of_the_run(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(1, 13):
        log.log("step", {"step": step, "life": 1})
    log.log("eval", {"step": 12, "life": 1})
    log.log("resume", {"step": 5})
    for step in range(6, 9):
        log.log("step", {"step": step, "life": 2})
    log.log("eval", {"step": 8, "life": 2})
    log.close()
    lives = [row["life"] for row in read_steps(tmp_path / "metrics.jsonl")]
    assert lives == [1, 1, 1, 1, 1, 2, 2, 2]
    (measured,) = read_history(tmp_path / "metrics.jsonl", kind="eval")
    assert measured["step"] == 8


def test_readers_of_a_growing_file_see_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    done = threading.Event()

    def write() -> None:
        for number in range(300):
            lines.append({"number": number, "filler": "x" * 5000})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    offset, seen = 0, []
    while not done.is_set() or offset < lines.size:
        for end, line in list(read_json_lines(path, offset=offset)):
            offset = end
            seen.append(line["number"])
    writer.join()
    lines.close()
    assert seen == list(range(300))


def test_a_line_is_not_read_before_its_end_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"1\n2")
    assert list(read_json_lines(path)) == [(2, 1)]
    path.write_bytes(b"1\n23\n")
    assert list(read_json_lines(path, offset=2)) == [(5, 23)]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    write_atomically(path, b"old")
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from areal_sdk.telemetry.files import write_atomically\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_atomically(Path(sys.argv[1]), b'x' * 5000)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True)
    assert b"StorageError: no space left on the disk of" in result.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from areal_sdk.telemetry.files import JsonLines\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "lines = JsonLines(Path(sys.argv[1]))\n"
        "lines.append({'n': 1})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "lines.append({'n': 'x' * 5000})\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True)
    assert b"StorageError: no space left on the disk of" in result.stderr
    assert path.read_bytes() == b'{"n":1}\n'


def test_a_run_directory_is_never_reused(tmp_path: Path) -> None:
    RunDir.create(tmp_path, "mine").write_config({})
    with pytest.raises(ConfigError, match=r"exists: choose another run.name.*--resume"):
        RunDir.create(tmp_path, "mine")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"choose another run\.name$"):
        RunDir.create(tmp_path, "file")
    names = {RunDir.create(tmp_path, stem="calculator").path for _ in range(5)}
    assert len(names) == 5
    assert all(path.name.startswith("calculator-2") for path in names)


def test_what_is_not_a_run_is_refused_with_the_nearest_run(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "real")
    run.write_config({"run": {"seed": 1}})
    run.metrics.write_text('{"kind": "step", "step": 1}\n')
    failed = RunDir.create(tmp_path, "failed")  # at its start: newer, and nothing to look at
    failed.write_config({})
    failed.metrics.write_text("")  # opened, and nothing was measured
    assert RunDir.open(run.path) == run
    with pytest.raises(
        ConfigError, match=r"is not a run directory.*the newest run beside it: .*real"
    ):
        RunDir.open(tmp_path / "reel")


def test_the_name_of_a_run_is_not_its_path_and_the_path_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RunDir.create(Path("runs"), "sums[1]").write_config({})
    with pytest.raises(ConfigError, match=r"; there is one of this name: runs/sums\[1\]$"):
        RunDir.open(Path("sums[1]"))


def test_a_run_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    assert not run.is_in_use()
    with run.in_use():
        assert run.is_in_use()
        taken = pytest.raises(ConfigError, match=rf"still going on \(pid {os.getpid()}\)")
        with taken, RunDir(run.path).in_use():
            raise AssertionError("two writers")
    with run.in_use():
        pass


def test_the_stored_config_has_no_secrets(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    config = {
        "gateway": {"admin_key": "k-123", "port": 8000, "api_key": None},
        "reward": {"judge": {"OPENAI_API_KEY": "k-456", "max_tokens": 9, "hf_token": "k-789"}},
        "engine": {"urls": ("http://user:k-000@host:1/v1",), "path": Path("models")},
    }
    run.write_config(config)
    stored = run.read_config()
    assert "k-" not in run.config.read_text()
    assert stored["reward"]["judge"]["max_tokens"] == 9
    assert stored["gateway"] == {"admin_key": "(removed)", "port": 8000}
    assert stored["engine"] == {"urls": ["http://(removed)@host:1/v1"], "path": "models"}
    assert without_secrets({"token": ""}) == {"token": ""}


def test_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    assert run.read_live() is None
    assert run.read_ledger() is None
    assert run.read_metrics() == []
    assert list(run.list_episodes()) == []
    run.write_live({"step": 3})
    run.write_ledger({"started": 1})
    assert run.record_plugins({"math": "1.0", "games": "2.0"}) == []
    assert run.read_live() == {"step": 3}
    assert run.read_ledger() == {"started": 1}
    assert run.read_plugins() == {"installed": {"math": "1.0", "games": "2.0"}, "earlier": []}


def test_state_of_which_half_was_written_is_as_good_as_none(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    run.write_config({})
    for file in (run.live, run.ledger, run.plugins, run.began):
        file.write_bytes(b'{"started": 1, "running"')
    assert run.read_live() is run.read_ledger() is run.read_plugins() is None
    assert run.read_began() == run.config.stat().st_mtime
    run.call.write_bytes(b'{"agent": "capitals')
    with pytest.raises(
        ValueError, match=r"JSON|unexpected"
    ):  # without it another run would be resumed
        run.read_call()


def test_the_plugins_of_a_run_keep_their_history(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    run.record_plugins({"math": "1.0", "games": "2.0"})
    assert run.record_plugins({"math": "1.0", "games": "2.0"}) == []
    assert run.record_plugins({"math": "1.1", "chess": "3"}) == [
        "chess was not there, now it is 3",
        "games was 2.0, now it is gone",
        "math was 1.0, now it is 1.1",
    ]
    recorded = run.read_plugins()
    assert recorded is not None
    assert recorded["installed"] == {"math": "1.1", "chess": "3"}
    assert [entry["installed"] for entry in recorded["earlier"]] == [
        {"math": "1.0", "games": "2.0"}
    ]


def test_a_rate_forgets_what_is_older_than_its_window() -> None:
    rate = Rate(window_s=10.0)
    for second in range(100, 120):
        rate.add(5.0, now=float(second))
    assert rate.per_second(now=120.0) == pytest.approx(5.0, rel=0.15)
    assert rate.per_second(now=140.0) == 0.0
    assert rate.total == 100.0
