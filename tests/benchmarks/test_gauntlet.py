"""`benchmarks/gauntlet.py`: the rules that class a run, its tasks, and two short runs."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

LoadProgram = Callable[[str], ModuleType]


@pytest.mark.parametrize(
    ("scores", "signal", "verdict"),
    [
        ([0.4, 0.5, 0.7, 0.8, 0.8, 0.8], 0.5, "learnt and stayed"),
        ([0.4, 0.5, 0.8, 0.8, 0.8, 0.75, 0.75, 0.75], 0.5, "learnt and stayed"),
        ([0.97, 0.97, 0.98, 0.96], 0.0, "learnt and stayed"),
        ([0.4, 0.8, 0.8, 0.8, 0.5, 0.5, 0.5], 0.5, "learnt then fell"),
        ([0.4, 0.4, 0.45, 0.42, 0.44], 0.5, "stalled"),
        ([0.4, 0.4, 0.3, 0.1, 0.1, 0.1], 0.5, "collapsed"),
        ([0.02, 0.5, 0.8, 0.8, 0.8, 0.1, 0.0, 0.0], 0.5, "collapsed"),
        ([0.97, 0.97, 0.5, 0.5, 0.5], 0.5, "collapsed"),
        ([0.0, 0.0, 0.0, 0.0], 0.0, "no signal"),
        ([0.3], 0.0, "no signal"),
    ],
)
def test_the_class_of_a_run_follows_its_scores(
    load_program: LoadProgram, scores: list[float], signal: float, verdict: str
) -> None:
    judge = load_program("verdicts").judge
    found = judge(scores, num_games=200, num_first=600, signal=signal)
    assert found.verdict == verdict


def test_chance_is_no_learning(load_program: LoadProgram) -> None:
    judge = load_program("verdicts").judge
    scores = [0.3, 0.45, 0.45, 0.45]
    assert judge(scores, num_games=10, num_first=10, signal=1.0).verdict == "stalled"
    assert judge(scores, num_games=200, num_first=200, signal=1.0).verdict == "learnt and stayed"


def test_no_held_out_task_is_trained_but_where_a_task_says_so(load_program: LoadProgram) -> None:
    programs = load_program("gauntlet_one_process"), load_program("gauntlet_command")
    load_agent = load_program("wordplay").load_agent
    agents = sorted(programs[1].HERE.joinpath("gauntlet").glob("*.py"))
    assert {path.stem for path in agents} >= set(programs[0].WORD_TASKS)
    assert {path.stem for path in agents} <= set(programs[1].BY_NAME)
    for path in agents:
        agent = load_agent(path)
        trained, held_out = (
            [repr(task.data) for task in agent.tasks(split)] for split in ("train", "eval")
        )
        assert held_out
        says_so = "the held-out tasks are training tasks too" in path.read_text()
        assert bool(set(trained) & set(held_out)) == says_so, path.stem


def test_what_a_run_of_the_command_left_is_read(load_program: LoadProgram) -> None:
    def step(number: int, alike: int, **more: float) -> dict[str, object]:
        return {
            "kind": "step",
            "step": number,
            "batch/groups": 4,
            "batch/uniform_groups": alike,
        } | more

    def evaluation(number: int, success: float) -> dict[str, object]:
        return {"kind": "eval", "step": number, "success": success, "episodes": 100.0}

    rows = [
        evaluation(0, 0.4),
        *(step(number, 3, **{"train/kl_behaviour": 0.01 * number}) for number in range(1, 9)),
        evaluation(4, 0.8),
        *(evaluation(number, 0.3) for number in (5, 6, 7)),
        evaluation(7, 0.3),
        {"kind": "end", "ended": "steps"},
    ]
    told = ["note: after this step the policy is 0.9 nats a token away from", "step 8/8"]
    found = load_program("gauntlet_command").read("grid", 0, rows, told, cpu_s=1.0)
    assert found.scores == [0.4, 0.8, 0.3, 0.3, 0.3]
    assert found.signal == 0.25
    assert found.largest_kl == pytest.approx(0.08)
    assert found.ended == "steps"
    assert found.notes == told[:1]


@pytest.mark.long
def test_a_short_run_learns_at_a_good_rate_and_stalls_at_a_tiny_one(
    load_program: LoadProgram,
) -> None:
    program = load_program("gauntlet_one_process")

    def run(task: str, rate: float, steps: int) -> Any:
        case = program.Case(task, 1, "grpo", rate, steps=steps, eta=1, groups=4)
        curve = program.measure(case, settings={}, options={})
        return program.judged(case, program.outcome(curve)).verdict, curve.scores, curve.per_step

    assert run("tool_choice", 1e-3, 40)[0] == "learnt and stayed"
    stalled, again = (run("second_try", 1e-9, 10) for _ in range(2))
    assert stalled[0] == "stalled"
    assert stalled == again


def test_the_published_tables_are_those_of_the_committed_outcomes(
    load_program: LoadProgram,
) -> None:
    program = load_program("gauntlet_one_process")
    section = program.section_of(program.load(program.OUTCOMES))
    assert section in program.DOCUMENT.read_text()
