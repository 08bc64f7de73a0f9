"""The temperature at which evaluations play, and who decides it."""

import re
from pathlib import Path

import pytest

from areal_sdk.config import load_config, parse_config
from areal_sdk.telemetry import RunDir
from tests.loop.runs import finish, start_command

TALKER = """
from areal_sdk import Agent, Task

class Talker(Agent):
    async def run(self, task, context):
        said = await context.generate([{"role": "user", "content": "?"}], max_new_tokens=8)
        print("said", said.output_tokens)
        return 1.0

def tasks(split):
    yield Task("one")
"""


@pytest.mark.parametrize(
    ("section", "played_at"),
    [
        ({}, 0.0),
        ({"samples": 4}, 1.0),
        ({"samples": 4, "temperature": 0.6}, 0.6),
        ({"samples": 4, "temperature": 0.0}, 0.0),
        ({"temperature": 0.6}, 0.6),
    ],
)
def test_several_samples_differ_unless_a_temperature_is_given(
    section: dict[str, float], played_at: float
) -> None:
    assert parse_config({"eval": section}).eval.sampling_temperature == played_at


def test_more_samples_of_a_stored_run_are_not_played_greedily(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    run.write_config(parse_config({}).model_dump(mode="json", exclude_none=True))
    again = load_config(file=run.config, overrides={"eval.samples": 4})
    assert again.eval.sampling_temperature == 1.0


def test_a_temperature_that_is_set_holds_for_several_samples(tmp_path: Path) -> None:
    agent = tmp_path / "talker.py"
    agent.write_text(TALKER)
    output = finish(
        start_command(
            *("eval", str(agent), "--model", "tiny", "--samples", "4"),
            *("--set", "eval.temperature=0"),
        )
    )
    said = re.findall(r"said (.*)", output)
    assert len(said) == 4
    assert len(set(said)) == 1, "greedy attempts are all the same"
