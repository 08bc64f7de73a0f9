"""`inspect` shows what a run wrote, token by token, without the run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from areal_sdk.cli.records.episode import printable
from areal_sdk.cli.records.inspect import inspect
from areal_sdk.models import resolve_model
from areal_sdk.telemetry import EpisodeWriter, Ledger, MetricsLog, RunDir
from areal_sdk.telemetry.live.terminal import RunStatus
from areal_sdk.trajectory import Credit, Trajectory
from areal_sdk.types import Episode, ErrorKind, Exclusion, Outcome, Task, Turn


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = RunDir.create(tmp_path, "r")
    run.write_config({"agent": "calculator.py", "model": str(resolve_model("tiny"))})
    metrics = MetricsLog(run.metrics)
    for step, reward in enumerate([0.25, 0.5, 1.0], start=1):
        metrics.log("step", {"step": step, "version": step, "batch/reward": reward})
    metrics.log("eval", {"step": 0, "name": "before", "split": "eval", "success": 0.4, "tasks": 10})
    metrics.close()
    ledger = Ledger()
    ledger.start(2)
    ledger.buffer(2)
    ledger.train(2)
    run.write_ledger(ledger.snapshot())
    run.write_live(
        RunStatus(name="calculator", step=3, total_steps=9).as_json()
        | {"waits": [{"name": "trainer: step 4", "waited_s": 1.5, "timeout_s": 60}]}
    )
    writer = EpisodeWriter(run.episodes)
    prompt, output = tuple(b"2+2?"), (*b"4", 258)
    turn = Turn(
        prompt,
        output,
        (-0.1, -0.2),
        (2, 3),
        message={"role": "assistant", "content": "4"},
        new_messages=({"role": "user", "content": "2+2?"},),
    )
    trajectory = Trajectory(
        "ep-1",
        "t",
        (*prompt, *output),
        (False,) * 4 + (True,) * 2,
        (0.0,) * 4 + (-0.1, -0.2),
        (-1,) * 4 + (2, 3),
        (1.0,) * 6,
        (-1,) * 4 + (0, 0),
        1.0,
    )
    writer.write(
        Episode("ep-1", Task("t"), (turn,), Outcome.scored(1.0, success=True)),
        trajectories=[trajectory],
        version=3,
    )
    writer.close()
    return run.path


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(inspect, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_episodes_of_a_run_that_was_killed_are_not_running(run_dir: Path) -> None:
    run, ledger = RunDir.open(run_dir), Ledger()
    ledger.start(3)
    run.write_ledger(ledger.snapshot())
    assert "started 3 = cut off with the run 3 + buffered 0" in output_of(str(run_dir))
    with run.in_use():
        assert "started 3 = running 3 + buffered 0" in output_of(str(run_dir))


def test_a_run_is_summed_up(run_dir: Path) -> None:
    output = output_of(str(run_dir))
    assert "calculator.py on" in output
    assert "3 steps" in output
    assert "0.250 -> 1.000" in output
    assert "started 2 = running 0 + buffered 0 + trained 2 + dropped (none)" in output
    assert "before: eval: tasks 10  success 0.4" in output
    assert f"token by token: areal-sdk inspect {run_dir} --episode ep-1" in output
    assert "these are the newest" not in output
    assert "these are the newest 1; more: --episodes 10" in output_of(
        str(run_dir), "--episodes", "1"
    )


def test_the_shares_of_a_mixture_are_shown_where_a_curriculum_moves_them(run_dir: Path) -> None:
    assert "shares  " not in output_of(str(run_dir))
    metrics = MetricsLog(RunDir(run_dir).metrics)
    for step, share in ((1, 0.5), (4, 0.125)):
        shares = {"batch/source/easy/share": share, "batch/source/hard/share": 1 - share}
        metrics.log("step", {"step": step, **shares})
    metrics.close()
    assert "shares     easy 50 %, hard 50 % -> easy 12 %, hard 88 %" in output_of(str(run_dir))


def test_a_run_that_never_called_a_tool_is_told_what_helps(run_dir: Path) -> None:
    told = "tools were offered in 40 episodes and never called: warm up with `sft`, or show an"
    metrics = MetricsLog(RunDir(run_dir).metrics)
    offered = {"batch/offered_tools": 32.0, "batch/called_tools": 0.0}
    metrics.log("step", {"step": 4, **offered})
    metrics.log("step", {"step": 5, **offered, "batch/offered_tools": 8.0})
    assert told in output_of(str(run_dir))
    metrics.log("step", {"step": 6, **offered, "batch/called_tools": 1 / 32})
    metrics.close()
    assert "never called" not in output_of(str(run_dir))


def test_the_means_of_what_outcomes_carry_are_shown(run_dir: Path) -> None:
    metrics = MetricsLog(RunDir(run_dir).metrics)
    for step, searches in ((4, 3.0), (5, 1.5)):
        metrics.log("step", {"step": step, "batch/outcome/searches": searches})
    metrics.close()
    assert "outcome    searches 3 -> 1.5" in output_of(str(run_dir))


def test_a_run_that_learns_from_data_shows_what_and_its_loss(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "tuned")
    run.write_config({"model": "tiny", "finetune": {"objective": "reward_model"}})
    metrics = MetricsLog(run.metrics)
    for step, loss in ((1, 2.0), (2, 0.5)):
        metrics.log("step", {"step": step, "train/loss": loss})
    metrics.close()
    output = output_of(str(run.path))
    assert "reward-model on tiny, 2 steps\nloss       2.000 -> 0.500" in output
    assert "reward " not in output


def test_an_episode_shows_conversation_tokens_mask_versions_and_reward(run_dir: Path) -> None:
    output = output_of(str(run_dir), "--episode", "ep-1")
    assert "verdict: reward 1, success" in output
    assert "user: 2+2?" in output
    assert "assistant: 4" in output
    assert "4 + 2 tokens, stop, T 1, v2..v3" in output
    assert "2+2?[v2|4][v3|<|im_end|>]" in output


@pytest.fixture
def raw(run_dir: Path) -> str:
    """What `--raw` shows of an episode of two turns; the second one reads the first one's tokens."""
    run = RunDir.open(run_dir)
    prompt = (257, *b"Tools:\nadd(a: any)\x1b", 258, *b"2+2?")
    first = Turn(prompt, (*b"4", 258), (-0.125, -2.5), (2, 3))
    shared = first.num_tokens
    more = Turn(
        tuple(b"more"), (258,), (-1.0,), (3,), num_shared=shared, shares_with=0, _before=first
    )
    writer = EpisodeWriter(run.episodes)
    writer.write(Episode("raw", Task("t"), (first, more), Outcome.scored(1.0)), version=3)
    writer.close()
    return output_of(str(run_dir), "--episode", "raw", "--raw")


def test_what_the_model_read_is_shown_with_special_tokens(raw: str) -> None:
    assert "turn 0 read 25 tokens:\n" in raw
    assert "Tools:\nadd(a: any)" in raw
    assert "<|im_end|>2+2?" in raw


def test_what_a_turn_read_cannot_steer_the_terminal(raw: str) -> None:
    assert "\x1b" not in raw


def test_sampled_tokens_are_shown_with_logprob_and_version(raw: str) -> None:
    assert "   -0.1250  v2       52  '4'" in raw
    assert "   -2.5000  v3      258  '<|im_end|>'" in raw


def test_tokens_that_a_turn_before_read_are_not_shown_again(raw: str) -> None:
    assert "turn 1 read 31 tokens, the first 27 as in turn 0:\nmore\n" in raw


def test_a_run_without_its_tokenizer_shows_ids_and_says_what_to_copy(
    run_dir: Path, tmp_path: Path
) -> None:
    run, tiny = RunDir.open(run_dir), resolve_model("tiny")
    run.config.write_text('model = "gone/away"')
    shown = output_of(str(run_dir), "--episode", "ep-1", "--raw")
    assert "the tokenizer of gone/away is not on this machine: ids are shown" in shown
    assert "50 43 50 63" in shown
    run.model.mkdir()
    for name in ("config.json", "tokenizer.json"):  # what the line says
        assert name in shown
        (run.model / name).write_bytes((tiny / name).read_bytes())
    assert "2+2?" in output_of(str(run_dir), "--episode", "ep-1", "--raw")
    refused = CliRunner().invoke(inspect, [str(run_dir), "--raw"])
    assert "--raw shows one episode: name it with --episode ID" in refused.output


def test_a_greedy_turn_has_the_temperature_it_was_sampled_with(run_dir: Path) -> None:
    """The turn keeps logprobs of T = 1."""
    greedy = Turn((1,), (2,), (-0.1,), (0,), excluded=Exclusion.GREEDY)
    writer = EpisodeWriter(RunDir.open(run_dir).episodes)
    writer.write(Episode("greedy", Task("t"), (greedy,), Outcome.scored(1.0)), version=0)
    writer.close()
    shown = output_of(str(run_dir), "--episode", "greedy")
    assert "1 + 1 tokens, stop, T 0, v0, not trained: greedy" in shown


def test_an_episode_that_failed_shows_the_traceback_of_the_users_code(run_dir: Path) -> None:
    trace = 'Traceback:\n  File "agent.py", line 5, in run\nKeyError: \x1b[2J'
    failed = Outcome.failed(ErrorKind.AGENT, "agent x: KeyError (agent.py:5)", trace=trace)
    writer = EpisodeWriter(RunDir.open(run_dir).episodes)
    writer.write(Episode("ep-2", Task("t"), (), failed), version=3)
    writer.close()
    shown = output_of(str(run_dir), "--episode", "ep-2")
    assert "agent x: KeyError (agent.py:5)" in shown
    assert 'File "agent.py", line 5, in run' in shown
    assert "\x1b" not in shown


def test_episodes_that_were_deleted_are_told(run_dir: Path) -> None:
    assert "deleted" not in output_of(str(run_dir))
    writer = EpisodeWriter(RunDir.open(run_dir).episodes, keep_bytes=4000)
    for number in range(100):
        writer.write(Episode(f"new-{number}", Task("t"), (), Outcome.scored(1.0)))
    writer.close()
    kept = len(list(RunDir.open(run_dir).list_episodes()))
    assert f"the oldest {101 - kept} episodes (run.keep_episodes)" in output_of(str(run_dir))


def test_an_episode_that_a_resume_undid_is_not_listed_and_says_so(run_dir: Path) -> None:
    before = output_of(str(run_dir))
    writer = EpisodeWriter(RunDir.open(run_dir).episodes)
    writer.mark_taken(8, waiting=[])
    writer.write(Episode("ep-9", Task("t"), (), Outcome.scored(1.0)), version=8)
    writer.mark_trained({"ep-9": Credit(0.5)}, step=9)
    assert "step 9" in output_of(str(run_dir))
    writer.mark_resumed(8)
    writer.close()
    assert output_of(str(run_dir)) == before
    shown = output_of(str(run_dir), "--episode", "ep-9")
    assert "trained in step 9" in shown
    assert "undone: a resume went on before that" in shown


def test_live_shows_who_waits_for_what(run_dir: Path) -> None:
    with RunDir(run_dir).in_use():
        output = output_of(str(run_dir), "--live")
    assert "2 s of 60 s  trainer: step 4" in output
    assert "as of 0 s ago" in output


@pytest.mark.parametrize(
    ("step", "told"),
    [(9, "ended 0 s ago: steps"), (3, "ended 0 s ago, at step 3; go on with: areal-sdk train")],
)
def test_live_says_of_a_run_that_has_ended_how(run_dir: Path, step: int, told: str) -> None:
    RunDir(run_dir).write_live(RunStatus(step=step, total_steps=9).as_json())
    assert told in output_of(str(run_dir), "--live")


def test_live_says_that_a_silent_run_hangs(run_dir: Path) -> None:
    run = RunDir(run_dir)
    os.utime(run.live, (0, 0))
    with run.in_use():
        assert output_of(str(run_dir), "--live").endswith("s ago: it hangs\n")


def test_a_run_that_only_records_says_so_and_when_sessions_come(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "r")
    run.write_config({"model": "tiny", "serve": {"record": True}})
    output = output_of(str(run.path))
    assert f"{run.path}: callers on tiny, recorded" in output
    assert "no episodes yet: a session is written when it has its reward" in output
    live = CliRunner().invoke(inspect, [str(run.path), "--live"])
    assert "sessions and no training" in str(live.exception)

    writer = EpisodeWriter(run.episodes)
    for name in ("admin/mine", "alice/ours", "bob/ours"):
        writer.write(Episode(name, Task("t"), (), Outcome.scored(1.0)), split="live")
    writer.close()
    assert output_of(str(run.path)).count(" recorded\n") == 4
    assert "episode admin/mine" in output_of(str(run.path), "--episode", "mine")
    ambiguous = CliRunner().invoke(inspect, [str(run.path), "--episode", "ours"])
    assert "the newest are bob/ours, alice/ours" in str(ambiguous.exception)


@pytest.mark.parametrize(
    ("flags", "key"),
    [((), "ledger"), (("--episode", "ep-1"), "trajectories"), (("--live",), "step")],
)
def test_everything_is_also_json(run_dir: Path, flags: tuple[str, ...], key: str) -> None:
    data: dict[str, Any] = json.loads(output_of(str(run_dir), "--json", *flags))
    assert data[key]


def test_what_a_model_said_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\r\u202ec") == "a�[2Jb��c"
