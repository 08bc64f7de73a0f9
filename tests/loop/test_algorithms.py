"""Algorithms that plugins bring."""

from pathlib import Path

from areal_sdk.loop.steps import MAX_SKIPPED_STEPS
from tests.loop.runs import AGENT, finish, run_dir, start_training

PRESET = """

def mine(knobs):
    from areal_sdk.algorithms.presets import grpo

    print("the preset of the agent's file", flush=True)
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
    agent = agent_with_preset(tmp_path, "grpo(knobs)")
    finish(start_training(tmp_path, agent=agent, run__steps=1, algorithm__name="mine"))
    run = run_dir(tmp_path)
    assert len(run.read_steps()) == 1
    assert "the preset of the agent's file" in (run.logs / "trainer-0.log").read_text()


def test_a_preset_that_returns_something_else_says_what_it_should(tmp_path: Path) -> None:
    agent = agent_with_preset(tmp_path, "0.2")
    output = finish(start_training(tmp_path, agent=agent, algorithm__name="mine"), code=2)
    assert "a preset takes Knobs and returns an Algorithm" in output


NO_NUMBER = """dataclasses.replace(
        grpo(knobs), objective=lambda terms: dataclasses.replace(
            grpo(knobs).objective(terms), sum=terms.current_T.sum() * float("nan")
        )
    )"""


def test_a_run_whose_gradients_are_not_finite_says_so_and_ends(tmp_path: Path) -> None:
    agent = agent_with_preset(tmp_path, NO_NUMBER)
    agent.write_text("import dataclasses\n" + agent.read_text())
    process = start_training(tmp_path, agent=agent, run__steps=20, algorithm__name="mine")
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
        tmp_path, sft__steps=20, sft__learning_rate=1e30, sft__demonstrations=demonstrations
    )
    output = finish(process, code=1)
    assert "warm-up steps in a row were not finite: lower sft.learning_rate" in output
