"""Old conversations judged by a reward: of a plugin, or of a file."""

import json
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner, Result
from trace_exports import EXPORTS

from areal_sdk import Task
from areal_sdk.testing import RecordedRun, make_episode
from areal_sdk_traces.command import traces


def run(*arguments: str) -> Result:
    return CliRunner().invoke(traces, [*arguments], catch_exceptions=False)


def test_a_reward_of_a_plugin_judges_the_episodes_of_a_run(tmp_path: Path) -> None:
    recorded = RecordedRun(tmp_path / "run")
    for name, text, data in (
        ("a", "4", {"answer": "4"}),
        ("b", "5", {"answer": "4"}),
        ("c", "6", {"no": "answer"}),
    ):
        said = replace(make_episode(text), id=name, task=Task(name, data))
        recorded.measure(said, split="live")
    recorded.close()
    ended = run(str(tmp_path / "run"), "--reward", "exact_match", "--min-score", "1")
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == ["a"]
    assert "b: its score is 0" in ended.stderr
    assert "c: no score by exact_match: " in ended.stderr
    assert "c: it has no score 'exact_match'" in ended.stderr


def test_a_reward_of_a_file_judges_what_another_tool_recorded(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(json.dumps(row) for n in (1, 22) for row in EXPORTS["openai"](n)))
    (tmp_path / "mine.py").write_text(
        "async def short(episode):\n"
        "    calls = sum(len(turn.message.get('tool_calls') or ()) for turn in episode.turns)\n"
        "    return calls - 0.5 * (len(episode.final_text) > 8)\n"
    )
    reward = f"{tmp_path}/mine.py:short"
    ended = run("import", str(source), "--from", "openai", "--reward", reward)
    scores = [json.loads(line)["scores"] for line in ended.stdout.splitlines()]
    assert scores == [{"short": 1.0}, {"short": 0.5}]
