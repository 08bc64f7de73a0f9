"""Probes: the first advice is right, figures are those of the record, and replays score the same answers."""

import json
import runpy
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from areal_sdk import EngineError, Episode, GenerateRequest, Outcome
from areal_sdk.testing import check_plugin, make_episode
from areal_sdk_probe.command import probe
from areal_sdk_probe.figures import figures_of, groups_of, noise_of
from areal_sdk_probe.playing import play
from areal_sdk_probe.replay import ReplayEngine

AGENTS = Path(__file__).with_name("probe_agents.py")


def probed(
    agent: str, directory: Path, *more: str, model: str = "tiny", most: int = 8
) -> Mapping[str, Any]:
    """The JSON that the command prints. `most`: tokens of a turn."""
    settings = ("--set", f"run.dir={directory}", "--set", f"rollout.max_new_tokens={most}")
    arguments = [f"{AGENTS}::{agent}", "--json", "--model", model, *settings, *more]
    result = CliRunner().invoke(probe, arguments, catch_exceptions=False)
    assert result.exit_code in (0, 1), result.output
    found: Mapping[str, Any] = json.loads(result.stdout)
    return found


def test_replays_play_the_same_answers_and_score_them_alike(tmp_path: Path) -> None:
    settings = {
        "model": "tiny",
        "run": {"dir": str(tmp_path)},
        "rollout": {"group_size": 4},
    }
    played = play(f"{AGENTS}::Pair", settings, num_groups=3, num_replays=2, quiet=True)
    figures = figures_of(played)
    assert len(played.episodes) == 12
    noise = figures.noise
    assert (noise.replays, noise.compared, noise.unequal, noise.lost) == (2, 12, 0, 0)
    assert (noise.spread, noise.share) == (0.0, 0.0)
    said = sorted(tuple(turn.output_tokens for turn in one.turns) for one in played.episodes)
    for replay in played.replays:
        again = [tuple(turn.output_tokens for turn in one.turns) for one in replay]
        assert sorted(again) == said
    assert figures.lengths["turns"] == {"p50": 2, "p90": 2, "p99": 2}
    assert figures.lengths["tokens"]["p99"] <= 12


def test_a_verdict_by_chance_is_the_first_thing_to_change(tmp_path: Path) -> None:
    found = probed("Dice", tmp_path, "--groups", "8", "--replays", "1")
    assert found["advice"][0]["fault"] == "noisy reward"
    assert found["figures"]["noise"]["share"] > 0.5


def test_too_few_groups_get_the_advice_of_an_evaluation(tmp_path: Path) -> None:
    found = probed("TooEasy", tmp_path, "--groups", "3", "--replays", "0")
    by_fault = {one["fault"]: one for one in found["advice"]}
    assert by_fault["few groups differ"]["change"] == "take harder tasks"
    assert found["figures"]["groups"]["too_easy"] == 1.0
    assert found["report"]["success"] == 1.0
    assert found["time"]["steps"] == 100
    rate = found["figures"]["episodes_per_s"]
    assert found["time"]["sampling_h"] == pytest.approx(100 * 32 / rate / 3600)


def test_a_probe_that_nobody_judged_ends_with_an_error(tmp_path: Path) -> None:
    arguments = [f"{AGENTS}::Silent", "--groups", "2", "--model", "tiny"]
    more = ["--set", f"run.dir={tmp_path}", "--set", "rollout.max_new_tokens=4"]
    result = CliRunner().invoke(probe, [*arguments, *more], catch_exceptions=False)
    assert result.exit_code == 1
    assert "errors     16 abstain" in result.stdout


def test_tasks_that_ask_the_same_are_told_and_share_their_answers() -> None:
    def attempt(task: str, reward: float) -> Episode:
        episode = make_episode("so", data={"q": "same"})
        task_of = replace(episode.task, id=task)
        scored = Outcome.scored(reward)
        return replace(episode, task=task_of, id=f"{task}.0", group=task, outcome=scored)

    first = [attempt("one", 1.0), attempt("two", 1.0)]
    rows = [{"task_id": one.task.id, "task_key": "k"} for one in first]
    replays = [[attempt("one", 1.0), attempt("two", 0.0)]]
    noise = noise_of(first, replays)
    assert (noise.compared, noise.unequal, noise.lost) == (2, 2, 0)
    assert groups_of(first, rows).repeated == 0.5


FIRST = {
    "Digits": None,
    "TooHard": "zero variance, hopeless",
    "TooEasy": "zero variance, solved",
    "Dice": "noisy reward",
    "Failing": "agent errors",
    "Silent": "no reward",
    "Story": "answers cut by the limit",
    "Calls": "tool calls never parse",
}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of supervised learning, whose weights answer as `probe_agents.rows` do."""
    rows = runpy.run_path(str(AGENTS))["rows"]
    directory = tmp_path_factory.mktemp("warm")
    data = directory / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    command = ["sft", str(data), "--model", "tiny", "--steps", "60", "--learning-rate", "5e-3"]
    where = ["--set", f"run.dir={directory}", "--set", "run.name=warm"]
    subprocess.run([sys.executable, "-m", "areal_sdk", *command, *where], check=True, timeout=500)
    return str(directory / "warm")


@pytest.mark.long  # 15 CPU-s for the weights, 3 for each probe
@pytest.mark.parametrize("agent", FIRST)
def test_the_first_advice_is_right(agent: str, warm: str, tmp_path: Path) -> None:
    found = probed(agent, tmp_path, model=warm, most=48)
    assert found["figures"]["noise"]["lost"] == 0
    assert [one["fault"] for one in found["advice"][:1]] == ([FIRST[agent]] if FIRST[agent] else [])
    assert found["learnable"] == (agent in ("Digits", "Story"))


async def test_a_prompt_that_was_not_recorded_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"max_position_embeddings": 64, "vocab_size": 300, "eos_token_id": 258}'
    )
    episode = make_episode("yes")
    engine = ReplayEngine([episode], tmp_path)
    assert engine.info.stop_tokens == (258,)
    (turn,) = episode.turns
    answer = await engine.generate(GenerateRequest(turn.prompt_tokens, 8))
    assert answer.tokens == turn.output_tokens
    with pytest.raises(EngineError, match="the episode left its record"):
        await engine.generate(GenerateRequest((9, 9), 8))


async def test_the_installed_plugin_keeps_every_contract() -> None:
    assert await check_plugin("areal-sdk-probe") is not None
