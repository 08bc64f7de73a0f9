"""Run directories for the tests, written by the writers of a real run from numbers chosen here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk import Episode, Outcome, Task, Turn
from areal_sdk.testing import RecordedRun
from areal_sdk.trajectory import Trajectory
from areal_sdk.types import ErrorKind, ForkReason

ATTACK = '<script>alert("x")</script><img src=x onerror=alert(1)><svg onload=alert(2)> & "quoted" \x1b[31mred\x1b[0m \u202egnirts'
"""Text that an agent may say: it must stay text wherever it is shown."""
SETTINGS = {
    "agent": "guess.py",
    "model": "tiny",
    "algorithm": {"name": "grpo"},
    "run": {"steps": 6},
}
STEPS, GROUP = 6, 4
TOKEN = "token-of-the-tests"
"""The token of the address of servers in tests."""


def write_run(root: Path, name: str = "guess-1") -> Path:
    """Six steps of one group of four each, an evaluation before and after, a failure, a long text, an attack."""
    rate = 1e-3 if name.endswith("1") else 2e-3
    run = RecordedRun(root / name, settings={**SETTINGS, "trainer": {"learning_rate": rate}})
    write_evaluation(run, "before", 0, 0.25)
    for step in range(1, STEPS + 1):
        write_step(run, step)
    failed = Outcome.failed(ErrorKind.AGENT, f"agent: KeyError {ATTACK} (agent.py:5)")
    run.drop(Episode("bad", Task("t-9"), (), failed), "error_agent")
    write_evaluation(run, "after", STEPS, 0.75)
    add_readings(run.path, make_episode(4, 0, 0.0))
    run.event("notice", {"step": 3, "level": "note", "text": f"slow {ATTACK}"})
    run.event("end", {"ended": "steps", "steps": STEPS, "version": STEPS, "train_seconds": 60.0})
    run.close()
    return run.path


NUM_TIMED = 16


def write_timed_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a second, and in each four episodes that end with it and had one call of half a second each."""
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    rollout = {"batch": 4, "group_size": 4, "max_staleness": 0, "max_inflight": 8}
    run = RecordedRun(path, settings={**SETTINGS, "rollout": rollout})
    asked, said = {"role": "user", "content": "go"}, {"role": "assistant", "content": "on"}
    for step in range(1, NUM_TIMED + 1):
        now += 1.0
        versions, logprobs = (step - 1,) * 10, (-0.5,) * 10
        turn = Turn((1,) * 20, (2,) * 10, logprobs, versions, said, (asked,))
        turn = replace(turn, began_s=0.05, first_token_s=0.1, duration_s=0.5)
        episodes = [
            Episode(
                f"train-{step}.{n}",
                Task("t"),
                (turn,),
                Outcome.scored(n / 4),
                group=f"train-{step}",
                sibling=n,
                duration_s=0.55,
            )
            for n in range(4)
        ]
        metrics = {
            **{"train_seconds": float(step), "engine_update_s": 0.02, "batch/waited_s": 0.6},
            **{"train/step_s": 0.3, "train/publish_s": 0.05, "train/num_computed": 120.0},
            **{"batch/episodes": 4.0, "batch/groups": 1.0},
        }
        advantages = {one.id: 0.0 for one in episodes}
        run.step(step, [(one, ()) for one in episodes], advantages=advantages, metrics=metrics)
    run.close()


def add_readings(path: Path, episode: Episode) -> None:
    """Two readings of the episode, the second by weights that make its second turn likelier, an attack the likeliest
    token's model; one of another episode of the same name, and a line that breaks off."""
    shift = {"step-000001": 0.0, f"step-000006 {ATTACK}": 0.4}
    lines = [
        {
            "episode": episode.id,
            "model": model,
            "turns": [
                {
                    "logprobs": [value + n * more for value in turn.logprobs],
                    "likeliest": [[[4, -0.5], [6, -1.5]]] * len(turn.logprobs),
                }
                for n, turn in enumerate(episode.turns)
            ],
        }
        for model, more in shift.items()
    ]
    lines.append({"episode": episode.id, "model": "other", "turns": [{"logprobs": [-1.0]}]})
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (path / "readings.jsonl").write_text(f'{text}{{"episode": ')


def add_failures(path: Path, *, num: int = 30) -> None:
    """Agents that raised what a hostile page said."""
    run = RecordedRun(path)
    for number in range(num):
        failed = Outcome.failed(ErrorKind.AGENT, f"agent: ValueError {ATTACK}")
        run.drop(Episode(f"raised-{number}", Task("t-9"), (), failed), "error_agent", version=STEPS)
    run.close()


def write_step(run: RecordedRun, step: int) -> None:
    rewards = [0.0, 0.25, 0.5, min(1.0, step / 5)]
    mean = sum(rewards) / GROUP
    episodes = [make_episode(step, sibling, reward) for sibling, reward in enumerate(rewards)]
    run.step(
        step,
        [(one, trajectories_of(one)) for one in episodes],
        advantages={one.id: (one.reward or 0.0) - mean for one in episodes},
        metrics={
            "train_seconds": 10.0 * step,
            "batch/episodes": GROUP,
            "batch/sampled_tokens": 8.0,
            "batch/waited_s": 1.0,
            "batch/groups": 1,
            "batch/reward": mean,
            "batch/success": 0.25,
            "train/entropy": 1.0 / step,
            "train/loss": float("nan") if step == 2 else -0.01 * step,
            "train/step_s": 1.5,
            "other/thing": 1.0,
        },
    )


def write_evaluation(run: RecordedRun, name: str, step: int, success: float) -> None:
    interval = {"success_low": success - 0.1, "success_high": success + 0.1}
    measured = {"split": "eval", "step": step, "success": success, "tasks": 8, **interval}
    run.event("eval", {"name": name, **measured})


def evaluate(
    path: Path, *, step: int, rewards: Mapping[str, Sequence[float | None]], prefix: str = ""
) -> None:
    """An evaluation after `step`: the rewards of the attempts at each task. None: the agent raised."""
    run = RecordedRun(path)
    for name, of_task in rewards.items():
        task = Task(f"{prefix}{name}", {"question": f"{name}?"})
        for number, reward in enumerate(of_task):
            said = {"role": "assistant", "content": f"{task.id} at step {step}: {reward}"}
            asked = {"role": "user", "content": f"{name}?"}
            turn = Turn((1,), (2,), (-0.5,), (step,), said, (asked,))
            failed = Outcome.failed(ErrorKind.AGENT, "agent: ValueError (agent.py:3)")
            outcome = failed if reward is None else Outcome.scored(reward)
            run.measure(
                Episode(f"step-{step}.{task.id}.{number}", task, (turn,), outcome), step=step
            )
    run.close()


def make_episode(step: int, sibling: int, reward: float) -> Episode:
    """Two turns: the second one extends the first; the last sibling branches instead, and attacks."""
    first = Turn(
        (1, 2, 3),
        (4, 10 + sibling // 2, 6),
        (-0.1, -1.5, -0.2),
        (step - 1,) * 3,
        {
            "role": "assistant",
            "content": f"<think>hm {sibling}</think>try {step}",
            "tool_calls": [call(sibling)],
        },
        ({"role": "user", "content": f"What is {step} times ten?"},),
        duration_s=0.2,
        first_token_s=0.05,
        queued_s=0.02,
    )
    is_last = sibling == GROUP - 1
    second = Turn(
        (7, 8) if not is_last else (9,),
        (20 + sibling, 6),
        (-0.5, -0.01),
        (step - 1, step),
        {"role": "assistant", "content": ATTACK if is_last else f"The answer is {10 * step}."},
        ({"role": "tool", "content": "x" * 30_000 if is_last else "no", "tool_call_id": "c1"},),
        parent=None if is_last else 0,
        fork=ForkReason.COMPACTION if is_last else None,
        num_shared=1 if is_last else 6,
        shares_with=0,
        _before=first,
        began_s=0.4,
        duration_s=0.1,
    )
    outcome = Outcome.scored(reward, success=reward == 1.0)
    name, task = f"train-{step}.{sibling}", Task(f"t-{step % 3}", {"question": ATTACK})
    return Episode(
        name, task, (first, second), outcome, group=f"train-{step}", sibling=sibling, duration_s=0.5
    )


def call(number: int) -> dict[str, object]:
    return {
        "id": "c1",
        "type": "function",
        "function": {"name": "multiply", "arguments": f'{{"by": {number}}}'},
    }


def trajectories_of(episode: Episode) -> Sequence[Trajectory]:
    """The last turn's branch, trained where it was sampled."""
    last = episode.turns[-1]
    tokens = last.tokens
    trained = range(last.num_prompt, len(tokens))
    mask = [place in trained for place in range(len(tokens))]
    logprobs = [0.0] * last.num_prompt + list(last.logprobs)
    versions = [-1] * last.num_prompt + list(last.versions)
    turns = [-1] * last.num_prompt + [1] * len(trained)
    ones = [1.0] * len(tokens)
    reward = episode.outcome.reward or 0.0
    return (
        Trajectory(
            episode.id, episode.task.id, tokens, mask, logprobs, versions, ones, turns, reward
        ),
    )
