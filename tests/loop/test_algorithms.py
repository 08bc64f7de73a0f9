"""Algorithms that plugins bring."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.api import check
from areal_sdk.loop.learning.steps import MAX_SKIPPED_STEPS
from tests.loop.runs import (
    AGENT,
    SCRIPTED_ENGINE,
    finish,
    refused,
    run_dir,
    start_training,
    training,
)

MINE: dict[str, Any] = {"algorithm__name": "mine", "algorithm__mine__scale": 2.0}

PRESET = """

def mine(*, scale: float = 1.0):
    from areal_sdk.algorithms.presets import grpo

    print("the preset of the agent's file, scale", scale, flush=True)
    return {returned}


@areal_sdk.hookimpl
def register_algorithms(register):
    register("mine", mine)
"""


def agent_with_preset(directory: Path, returned: str) -> Path:
    path = directory / "agent.py"
    path.write_text(AGENT.read_text() + PRESET.format(returned=returned))
    return path


def test_a_preset_in_the_agents_file_trains(tmp_path: Path) -> None:
    agent = agent_with_preset(tmp_path, "grpo()")
    finish(start_training(tmp_path, *SCRIPTED_ENGINE, agent=agent, run__steps=1, **MINE))
    run = run_dir(tmp_path)
    assert len(run.read_steps()) == 1
    assert "the preset of the agent's file, scale 2.0" in (run.logs / "trainer-0.log").read_text()


def test_a_preset_that_returns_something_else_says_what_it_should(tmp_path: Path) -> None:
    agent = agent_with_preset(tmp_path, "0.2")
    output = refused(*training(tmp_path, agent=agent, algorithm__name="mine"))
    assert "gave 0.2: a preset takes its options as keyword parameters and returns" in output


def test_a_preset_of_the_old_form_names_the_cure_before_anything_starts(tmp_path: Path) -> None:
    agent = agent_with_preset(tmp_path, "grpo()")
    agent.write_text(agent.read_text().replace("*, scale: float = 1.0", "knobs"))
    output = refused(*training(tmp_path, agent=agent, algorithm__name="mine"))
    assert "[algorithm.mine] needs knobs (any): a preset takes its options as keyword" in output
    assert not list(tmp_path.glob("**/trainer-0.log"))


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        ({"grpo": {"clip_hgih": 0.3}}, "no option 'clip_hgih': did you mean 'clip_high'?"),
        ({"grpo": {"beta": 0.1}}, "no option 'beta'; known: clip_low, clip_high, dual_clip, max"),
        (
            {"grpo": {"clip_low": 1.5}},
            r"[algorithm.grpo] clip_low = 1.5: input should be less than",
        ),
        ({"grpo": {"proximal": "none"}}, "'recompute', 'interpolate' or 'behaviour'"),
        (
            {"clip_high": 0.3},
            "clip_high is an option of one algorithm: set algorithm.grpo.clip_high",
        ),
    ],
)
def test_options_are_checked_before_anything_starts(
    algorithm: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        check(parse_config({"model": "tiny", "agent": str(AGENT), "algorithm": algorithm}))


def test_a_warm_up_and_a_reference_from_before_it_are_refused(tmp_path: Path) -> None:
    """The penalty would hold the policy near the weights that the warm-up has just left."""
    demonstrations = tmp_path / "demonstrations.jsonl"
    demonstrations.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    settings = {
        "model": "tiny",
        "agent": str(AGENT),
        "sft": {"steps": 2, "demonstrations": str(demonstrations)},
    }
    check(parse_config(settings))
    with pytest.raises(ConfigError, match=r"sft.steps = 2 .*areal-sdk sft, then --init-from"):
        check(parse_config({**settings, "algorithm": {"grpo": {"kl": 0.1}}}))


def test_an_algorithms_options_are_known_without_torch() -> None:
    code = (
        "import sys; from areal_sdk.plugins import list_options, load_plugins; "
        "assert list_options(load_plugins().algorithms.get('running_baseline')); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


NO_NUMBER = """dataclasses.replace(
        grpo(), objective=lambda terms: dataclasses.replace(
            grpo().objective(terms), terms_T=terms.current_T * float("nan")
        )
    )"""


@pytest.mark.long
def test_a_run_whose_gradients_are_not_finite_says_so_and_ends(tmp_path: Path) -> None:
    agent = agent_with_preset(tmp_path, NO_NUMBER)
    agent.write_text("import dataclasses\n" + agent.read_text())
    settings: dict[str, Any] = {"run__steps": 20, "algorithm__name": "mine"}
    process = start_training(tmp_path, *SCRIPTED_ENGINE, agent=agent, **settings)
    output = finish(process, code=1)
    assert "warning: step 1: 1 of 1 updates left out: the gradient was not finite" in output
    assert "steps in a row were not finite" in output
    assert "lower trainer.learning_rate" in output
    steps = run_dir(tmp_path).read_steps()
    assert len(steps) == MAX_SKIPPED_STEPS
    assert (run_dir(tmp_path).checkpoints / "step-000003").is_dir()


def test_a_warm_up_that_diverges_ends_the_run(tmp_path: Path) -> None:
    demonstrations = tmp_path / "demonstrations.jsonl"
    demonstrations.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    process = start_training(
        tmp_path,
        *SCRIPTED_ENGINE,
        sft__steps=20,
        sft__learning_rate=1e30,
        sft__demonstrations=demonstrations,
    )
    output = finish(process, code=1)
    assert "warm-up steps in a row were not finite: lower sft.learning_rate" in output
