"""`areal-sdk why` names injected faults, is silent on healthy runs, and says what it saw."""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from areal_sdk.cli.records.why import why as command
from areal_sdk.cli.summary import verdict_lines
from areal_sdk.records import wilson
from areal_sdk.records.diagnosis.course import windows
from areal_sdk.records.diagnosis.rules import steps as rules_of_steps
from areal_sdk.records.diagnosis.signs import Signs
from areal_sdk.records.diagnosis.verdict import Need, verdict_of, verdict_of_run
from areal_sdk.records.diagnosis.why import diagnose, why
from areal_sdk.telemetry import DropReason, EpisodeSummary, EpisodeWriter, MetricsLog, RunDir
from areal_sdk.telemetry.token_log import (
    CountedGroup,
    CountedSequence,
    StepTokens,
    TokenFlag,
    TokenWriter,
)
from areal_sdk.testing import RecordedRun, make_episode
from areal_sdk.types import Episode, ErrorKind, Outcome

from .faults import (
    APART,
    FAULTS,
    FLAT,
    HEALTHY,
    KEPT,
    RECORDED,
    SETTINGS,
    later,
    of_length,
    recorded,
    usual,
    with_text,
    write_run,
)

ONE_PROCESS: Mapping[str, Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("one_process_runs.json").read_text()
)


@pytest.mark.parametrize("name", FAULTS)
async def test_an_injected_fault_is_named_first(tmp_path: Path, name: str) -> None:
    fault, write = FAULTS[name]
    await write(tmp_path / name)
    found = why(RunDir.open(tmp_path / name)).findings
    assert [one.fault for one in found][:1] == [fault], found


@pytest.mark.parametrize("name", [*APART, *KEPT])
async def test_a_fault_that_no_rule_was_made_with_is_named_first(tmp_path: Path, name: str) -> None:
    fault, write = APART.get(name) or KEPT[name]
    await write(tmp_path / name)
    found = why(RunDir.open(tmp_path / name)).findings
    assert [one.fault for one in found][:1] == [fault], found


@pytest.mark.parametrize("name", HEALTHY)
async def test_a_healthy_run_has_no_fault(tmp_path: Path, name: str) -> None:
    await HEALTHY[name](tmp_path / name)
    diagnosis = why(RunDir.open(tmp_path / name))
    assert diagnosis.findings == ()
    assert diagnosis.course.startswith("flat: " if name == "a flat run" else "healthy: ")


PAID = [name for name, (fault, _) in {**FAULTS, **APART, **KEPT}.items() if "hacked" in fault]


@pytest.mark.parametrize("name", PAID)
async def test_the_end_of_a_run_names_a_fault_that_its_steps_hide(
    tmp_path: Path, name: str
) -> None:
    fault, write = {**FAULTS, **APART, **KEPT}[name]
    await write(tmp_path / name)
    run = RunDir.open(tmp_path / name)
    lines = [*verdict_lines(run)]
    if (verdict := verdict_of_run(run)) is not None and verdict.missing is None:
        assert lines[1].startswith(f"and yet {fault}: ")
    assert lines[-1].startswith("look for faults: areal-sdk why ")


@pytest.mark.parametrize("name", HEALTHY)
async def test_the_end_of_a_healthy_run_names_none(tmp_path: Path, name: str) -> None:
    await HEALTHY[name](tmp_path / name)
    lines = [*verdict_lines(RunDir.open(tmp_path / name))]
    assert len(lines) == 1 or name == "a flat run"
    assert not any(line.startswith("and yet") for line in lines)


RUNS_OF_TASKS = {
    f"{kind}: {name}": run for kind, runs in ONE_PROCESS.items() for name, run in runs.items()
}
"""56 recorded runs at right and wrong rates."""


def became(run: Mapping[str, Any]) -> str:
    """The fate of a run by a rule that knows its end: the last quarter against the best six steps before."""
    rewards = run["steps"]["batch/reward"]
    quarter = len(rewards) // 4
    best = max(fmean(rewards[at : at + 6]) for at in range(len(rewards) - quarter - 5))
    kept = fmean(rewards[-quarter:]) / best if best else 1.0
    return "collapsed" if kept < 0.5 else "sound" if kept >= 0.75 else "wavering"


def test_recorded_runs_that_collapsed_had_too_high_a_rate_and_sound_ones_no_fault() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for run in RUNS_OF_TASKS.values():
        found = diagnose(Signs(recorded(run), run.get("settings", {})))
        counts[became(run), found[0].fault if found else ""] += 1
    assert counts == {
        ("sound", ""): 32,
        (
            "sound",
            "rate too high",
        ): 3,  # at 5e-3 and 2e-2 without a bound: each jumped by 0.59 nats or more
        ("wavering", ""): 2,
        ("wavering", "rate too high"): 6,
        ("collapsed", "rate too high"): 13,
    }


FAULTY = {
    *("rate of 1e-7", "rate of 2e-5", "rate of 5e-3", "rate of 5e-2", "rloo, rate of 5e-3"),
    *("reward 0 for all", "reward 1 for all", "one turn of three", "one turn of three, masked"),
    *("reward by chance", "reward by chance for one secret in seven"),
    *("smollm2, rate of 3e-5, collapse", "samples up to 8 updates old, rate of 2e-3"),
}
"""Recorded runs that were made wrong on purpose."""


def test_false_alarms_by_rule_on_all_sound_recorded_runs() -> None:
    """The figures of docs/why.md."""
    sound = [run for name, run in RECORDED.items() if name not in FAULTY]
    sound += [run for run in RUNS_OF_TASKS.values() if became(run) == "sound"]
    accused: Counter[str] = Counter()
    num_accused = 0
    for run in sound:
        found = diagnose(Signs(recorded(run), run.get("settings", {})))
        accused.update(one.fault for one in found)
        num_accused += bool(found)
    assert (len(sound), num_accused) == (51, 3)
    assert accused == {"rate too high": 3, "entropy collapse": 1, "fall": 1}


def test_a_sound_run_is_seldom_accused_while_it_goes_on() -> None:
    """A look every fourth step at the runs that end without a finding."""
    accused: dict[str, set[str]] = {}
    num = 0
    for name, run in RUNS_OF_TASKS.items():
        steps, settings = recorded(run), run.get("settings", {})
        if became(run) != "sound" or diagnose(Signs(steps, settings)):
            continue
        num += 1
        for count in range(4, len(steps), 4):
            for finding in diagnose(Signs(steps[:count], settings))[:1]:
                accused.setdefault(finding.fault, set()).add(name)
    assert num == 32
    assert {fault: len(names) for fault, names in accused.items()} == {
        "rate too high": 5,  # at 5e-3 and 2e-2 without a bound: they jumped, and recovered
        "entropy collapse": 1,  # one of these five
    }


def test_too_high_a_rate_is_named_before_half_of_the_reward_is_lost() -> None:
    leads = []
    for run in RUNS_OF_TASKS.values():
        if became(run) != "collapsed":
            continue
        steps, rewards = recorded(run), run["steps"]["batch/reward"]
        best = max(range(len(rewards) - 5), key=lambda at: fmean(rewards[at : at + 6]))
        level = fmean(rewards[best : best + 6])
        lost = next(
            at for at in range(best + 6, len(rewards)) if fmean(rewards[at : at + 3]) < level / 2
        )
        told = next(
            count
            for count in range(1, len(steps) + 1)
            if any(one.fault == "rate too high" for one in diagnose(Signs(steps[:count], {})))
        )
        leads.append(lost + 1 - told)
    assert (len(leads), sum(lead > 0 for lead in leads)) == (13, 12)


def held_out(steps: list[dict[str, Any]], *, seed: int) -> list[dict[str, Any]]:
    """Evaluations of 100 tasks in the course of a run that does as well at held-out tasks: its level is that of the batches
    around, and the rest is chance."""
    chance, rows = random.Random(seed), []
    levels = windows([step["batch/success"] for step in steps])
    for at in [*range(0, len(levels), max(1, len(levels) // 10)), len(levels) - 1]:
        found = wilson(sum(chance.random() < levels[at] for _ in range(100)), 100)
        bounds = {"success_low": found.low, "success_high": found.high}
        rows.append({"split": "eval", "step": at + 1, "success": found.value, **bounds})
    return rows


def test_chance_in_evaluations_is_no_held_out_fall() -> None:
    """The figure of docs/why.md: 20 courses of chance for each sound recorded run."""
    sound = [run for name, run in RECORDED.items() if name not in FAULTY]
    sound += [run for run in RUNS_OF_TASKS.values() if became(run) == "sound"]
    num_accused = 0
    for run in sound:
        steps, settings = recorded(run), run.get("settings", {})
        for seed in range(20):
            signs = Signs(steps, settings, evaluations=held_out(steps, seed=seed))
            num_accused += rules_of_steps.held_out(signs) is not None
    assert (len(sound) * 20, num_accused) == (1020, 0)


FORGETS: Mapping[str, Any] = json.loads(Path(__file__).with_name("held_out_run.json").read_text())
"""Nine steps of a run of the command at a rate of 2e-3 without a bound, trained on two questions with the same answer, with its
evaluations of 100 other questions."""


async def test_a_run_that_forgets_held_out_tasks_is_not_called_healthy(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, recorded(FORGETS), await usual(), settings=FORGETS["settings"])
    assert why(RunDir.open(path)).findings == ()
    run = RecordedRun(path)
    for row in FORGETS["evaluations"]:
        run.event("eval", row)
    run.close()
    (finding,) = why(RunDir.open(path)).findings
    verdict = verdict_of_run(RunDir.open(path))
    assert verdict is not None
    assert (finding.fault, verdict.missing) == ("held-out tasks forgotten", Need.HELD_OUT)
    assert finding.found == verdict.figures
    assert finding.evidence[0].endswith("episodes of training played 7 different tasks")


def test_held_out_tasks_are_not_forgotten_if_success_fell_in_training_too() -> None:
    """Then the reward is the fault, and the evaluations show it too."""
    steps = recorded(FORGETS, batch__success=lambda part: 0.5 - 0.2 * part)
    signs = Signs(steps, {}, evaluations=FORGETS["evaluations"])
    assert (signs.course.name, signs.is_healthy) == ("reward", True)
    assert rules_of_steps.held_out(signs) is None


async def test_tokens_tell_whether_a_few_are_off_or_all(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, recorded(FLAT, train__dlogp_lag_0=lambda part: 0.4 + part), await usual())
    off = np.zeros(100, np.float32)
    off[:10] = 4.0
    columns: dict[str, NDArray[Any]] = {
        "flags": np.full(100, TokenFlag.COUNTED | TokenFlag.TERM, np.uint8),
        "proximal_minus_behaviour": off,
        "train_minus_proximal": np.zeros(100, np.float32),
    }
    sequence = CountedSequence("train-100.0", 0, 1.0, 1.0, ((0, 0, 100),))
    tokens = StepTokens(99, (), (CountedGroup("train-100", "t", None),), (sequence,), columns)
    TokenWriter(run / "tokens").write(100, tokens)
    (finding,) = why(RunDir.open(run)).findings
    assert finding.fault == "engine and trainer disagree"
    assert finding.evidence[1] == (
        "step 100: 10% of 100 tokens are off by more than 1 nat: a few tokens are wrong, not all"
    )
    (run / "tokens" / "step-000100.npz").write_bytes(b"half of a file")
    (finding,) = why(RunDir.open(run)).findings
    assert len(finding.evidence) == 1


def output_of(path: Path, *more: str) -> str:
    result = CliRunner().invoke(command, [str(path), *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


async def test_a_finding_is_told_with_its_evidence_what_moved_first_and_its_cure(
    tmp_path: Path,
) -> None:
    await FAULTS["the reward pays for length"][1](tmp_path / "run")
    lines = output_of(tmp_path / "run").splitlines()
    assert lines[0] == (
        "likely    reward hacked by length (told by the harm, not before it), since step 11"
    )
    assert lines[1].startswith("found     the reward 0.24 -> 0.90 in 60 steps, and success fell")
    assert lines[2] == "first     batch/sampled_tokens, from 20.00 to 50.25 at step 11"
    assert lines[3].startswith("cure      look at the best episodes")


async def test_the_findings_are_there_as_json(tmp_path: Path) -> None:
    await FAULTS["one answer is left"][1](tmp_path / "run")
    found = json.loads(output_of(tmp_path / "run", "--json"))
    (finding,) = found["findings"]
    assert (finding["fault"], finding["since"]) == ("entropy collapse", 39)
    assert finding["first"]["metric"] == "train/entropy"
    assert found["course"].startswith("flat: ")


async def test_a_cause_comes_before_its_effects(tmp_path: Path) -> None:
    await APART["a jump, and loops after it"][1](tmp_path / "run")
    faults = {one.fault: one.since for one in why(RunDir.open(tmp_path / "run")).findings}
    assert next(iter(faults)) == "rate too high"
    assert faults["garbled output"] > faults["rate too high"]
    assert [*faults.values()] == sorted(faults.values())


@pytest.mark.parametrize(("entropy", "is_taught"), [(1.5, True), (5.5, False)])
async def test_garbled_output_of_a_model_that_was_never_trained_asks_for_a_warm_up(
    tmp_path: Path, entropy: float, is_taught: bool
) -> None:
    steps = recorded(FLAT, train__entropy=lambda part: entropy)
    write_run(tmp_path / "run", steps, with_text(await usual(), "\ufffd" * 20))
    (finding, *_) = why(RunDir.open(tmp_path / "run")).findings
    assert finding.fault == "garbled output"
    assert ("sft.steps" in finding.cure) is not is_taught
    assert ("areal-sdk doctor model" in finding.cure) is is_taught


async def test_a_model_that_no_step_has_updated_is_known_by_what_it_sampled(tmp_path: Path) -> None:
    steps = [{**one} for one in recorded(FLAT)]
    for one in steps:
        one.pop("train/entropy", None)
    played = with_text(await usual(), "\ufffd" * 20)
    turns = (replace(turn, logprobs=(-5.5,) * len(turn.logprobs)) for turn in played.turns)
    untaught = replace(played, turns=tuple(turns))
    write_run(tmp_path / "run", steps, untaught)
    (finding, *_) = why(RunDir.open(tmp_path / "run")).findings
    assert finding.fault == "garbled output"
    assert "sft.steps" in finding.cure


@pytest.mark.parametrize(("said", "is_silent"), [("", True), (" \n", True), ("Wrong.", False)])
async def test_an_environment_that_says_nothing_is_found(
    tmp_path: Path, said: str, is_silent: bool
) -> None:
    one = await usual()
    told = ({"role": "user", "content": said},)
    later_turns = (replace(turn, new_messages=told) for turn in one.turns[1:])
    silent = replace(one, turns=(one.turns[0], *later_turns))
    write_run(tmp_path / "run", recorded(FLAT), silent)
    faults = [finding.fault for finding in why(RunDir.open(tmp_path / "run")).findings]
    assert faults == ["empty observations"] * is_silent


async def test_a_run_that_an_error_ended_is_told_with_the_error(tmp_path: Path) -> None:
    write_run(tmp_path / "run", recorded(FLAT)[:3], await usual())
    metrics = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    metrics.log("failed", {"error": "EngineError: out of memory"})
    metrics.close()
    first, second = output_of(tmp_path / "run").splitlines()
    assert first == "ended by  EngineError: out of memory"
    assert second.startswith("no fault found; ")


async def test_episodes_that_are_gone_are_counted_and_not_judged(tmp_path: Path) -> None:
    write_run(tmp_path / "run", recorded(FLAT)[:3], await usual())
    (records,) = (tmp_path / "run" / "episodes").glob("*.episodes")
    records.write_bytes(b"")
    assert "12 episodes of the sample cannot be read" in output_of(tmp_path / "run")


def test_a_run_without_a_step_has_no_fault(tmp_path: Path) -> None:
    RunDir.create(tmp_path, "run").write_config(SETTINGS)
    assert output_of(tmp_path / "run") == "no fault found; no step has trained anything yet\n"


@pytest.mark.parametrize(("losses", "fault"), [([1.0, 0.5, 0.9], ["fall"]), ([1.0, 0.7, 0.4], [])])
def test_a_run_that_learns_from_data_is_judged_by_its_losses(
    tmp_path: Path, losses: list[float], fault: list[str]
) -> None:
    run = RunDir.create(tmp_path, "run")
    run.write_config({"model": "tiny", "finetune": {"objective": "sft"}})
    metrics = MetricsLog(run.metrics)
    for step, loss in enumerate(losses, start=1):
        metrics.log("step", {"step": step, "train/loss": loss})
        metrics.log("held_out", {"step": step, "loss": loss})
    metrics.close()
    assert [one.fault for one in why(run).findings] == fault


@pytest.mark.parametrize(
    "row",
    [
        b"[1]",
        b"5",
        b'{"time": "x"}',
        b'{"time": 1e300}',
        b'{"time": 2}',
        b'{"time": 2, "said": [5]}',
        b'{"time": 2, "said": [], "step": 1, "running": "x"}',
        b'{"time": 2, "said": 7, "ended": 5}',
    ],
)
def test_a_flight_record_of_another_version_is_left_out(tmp_path: Path, row: bytes) -> None:
    run = RunDir.create(tmp_path, "run")
    run.write_config({})
    MetricsLog(run.metrics).log("failed", {"error": "EngineError: out of memory"})
    (run.path / "flight.jsonl").write_bytes(row + b"\n" + b'{"time": 1, "said": []}\n')
    assert why(run).failed == "EngineError: out of memory"


def test_the_noise_of_batches_is_no_fall_of_what_was_learnt(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    run.write_config({"model": "tiny", "finetune": {"objective": "sft"}})
    metrics = MetricsLog(run.metrics)
    for step, loss in enumerate([3.8, 2.7, 1.4, 0.5, 0.2, 0.06, 0.05, 0.004, 0.002, 0.02, 0.03]):
        metrics.log("step", {"step": step + 1, "train/loss": loss})
    metrics.close()
    assert why(run).findings == ()


def test_every_injected_fault_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text(encoding="utf-8")
    for name, (fault, _) in {**FAULTS, **APART, **KEPT}.items():
        assert f"| {name}" in page
        assert f"`{fault}`" in page


def measured(path: Path, outcome: Outcome, **figures: float) -> RunDir:
    """The directory of an evaluation of 16 tasks, four attempts each."""
    run = RunDir.create(path.parent, path.name)
    run.write_config(SETTINGS)
    metrics, episodes = MetricsLog(run.metrics), EpisodeWriter(run.episodes)
    metrics.log("measure", {"split": "eval", "agent": "a"})
    for number in range(64):
        name = f"eval.t{number // 4}.{number % 4}"
        episode = replace(make_episode("so"), id=name, outcome=outcome)
        dropped = DropReason.ERROR_REWARD if outcome.error else None
        episodes.write(episode, split="eval", version=0, dropped=dropped)
    counts = {"tasks": 16.0, "episodes": 64.0, "scored": 64.0, "truncated": 0.0, "compared": 16.0}
    metrics.log("eval", {"name": "eval", "step": 0, "to_version": 0, **counts, **figures})
    metrics.close()
    episodes.close()
    return run


def test_an_evaluation_says_what_would_keep_its_agent_from_learning(tmp_path: Path) -> None:
    hopeless = measured(tmp_path / "a", Outcome.scored(0.0), reward=0.0, success=0.0, differing=1.0)
    (finding,) = why(hopeless).findings
    assert (finding.fault, finding.since) == ("zero variance, hopeless", 0)
    assert output_of(hopeless.path).startswith("likely    zero variance, hopeless\n")
    cut = {"reward": 0.5, "success": 0.5, "differing": 16.0, "truncated": 40.0}
    (finding,) = why(measured(tmp_path / "b", Outcome.scored(0.5), **cut)).findings
    assert finding.fault == "answers cut by the limit"


def test_an_evaluation_whose_rewards_differ_has_no_fault(tmp_path: Path) -> None:
    sound = {"reward": 0.5, "success": 0.5, "differing": 12.0}
    path = measured(tmp_path / "run", Outcome.scored(0.5), **sound).path
    assert output_of(path) == "no fault found; success 0.50, measured and not trained\n"


def test_an_evaluation_of_another_version_without_its_figures_has_no_fault(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", Outcome.scored(0.0), reward=0.0, success=0.0)
    whole = run.metrics.read_text()
    for name in ("episodes", "scored", "tasks", "truncated", "to_version"):
        run.metrics.write_text(whole.replace(f'"{name}":', '"newer":'))
        assert why(run).findings == ()


def test_an_evaluation_that_nobody_judged_is_told_why(tmp_path: Path) -> None:
    failed = Outcome.failed(ErrorKind.REWARD, "ValueError: no number")
    lost = {"scored": 0.0, "errors/reward": 64.0, "compared": 0.0}
    (finding,) = why(measured(tmp_path / "run", failed, **lost)).findings
    assert (finding.fault, finding.evidence) == (
        "failing reward",
        ("64 times: ValueError: no number",),
    )


async def test_a_reward_that_pays_for_answers_that_the_limit_cuts_is_hacked(tmp_path: Path) -> None:
    def paid(path: Path, sign: float) -> RunDir:
        def change(one: Episode, part: float, chance: random.Random) -> Episode:
            count = round(later(40, 64)(part) * chance.uniform(0.7, 1.0))
            return replace(of_length(one, count), outcome=Outcome.scored(0.5 + sign * count / 128))

        pays = {name: later(0.34, 0.99) for name in ("batch__reward", "batch__success")}
        steps = recorded(FLAT, batch__truncated=later(0.31, 1.0), **pays)
        write_run(path, steps, played_once, change=change)
        return RunDir.open(path)

    played_once = await usual()
    (finding,) = why(paid(tmp_path / "pays", 1.0)).findings
    assert finding.fault == "reward hacked by length"
    assert "the limit cuts 100% of the answers (31% before)" in finding.found
    assert "rollout.truncated" in finding.cure
    assert why(paid(tmp_path / "costs", -1.0)).findings == ()


async def test_a_reward_of_nothing_but_length_is_hacked_by_it_however_far_it_came(
    tmp_path: Path,
) -> None:
    def change(one: Episode, part: float, chance: random.Random) -> Episode:
        count = round(later(20, 26)(part) * chance.uniform(0.6, 1.0))
        return replace(
            of_length(one, count), outcome=Outcome.scored(count / 48, success=count < 12)
        )

    courses = {"reward": (0.3, 0.45), "success": (0.7, 0.1), "sampled_tokens": (16, 21)}
    steps = recorded(FLAT, **{f"batch__{name}": later(*ends) for name, ends in courses.items()})
    write_run(tmp_path / "run", steps, await usual(), change=change)
    cures = {one.fault: one.cure for one in why(RunDir.open(tmp_path / "run")).findings}
    assert "bound it" in cures["reward hacked by length"]


def evaluated(step: int, share: float, num: int = 100) -> dict[str, Any]:
    found = wilson(round(share * num), num)
    bounds = {"success_low": found.low, "success_high": found.high}
    return {"split": "eval", "step": step, "success": found.value, **bounds}


def played_tasks(
    steps: list[dict[str, Any]], levels: Mapping[str, Callable[[float], float]], *, seed: int = 0
) -> list[EpisodeSummary]:
    """Episodes of tasks, each with a level of success in the course of the run; a task is drawn by chance for each four."""
    chance, found, task = random.Random(seed), [], ""
    for step in steps:
        part = step["step"] / len(steps)
        for at in range(32):
            if at % 4 == 0:
                task = chance.choice([*levels])
            won = chance.random() < levels[task](part)
            row: dict[str, Any] = {
                **dict.fromkeys(EpisodeSummary._fields[:16]),
                "id": f"{step['step']}.{at}",
                "task_id": task,
                "group": f"{step['step']}.{at // 4}",
            }
            more = {"success": won, "reward": float(won), "text": "", "step": step["step"]}
            found.append(EpisodeSummary(**{**row, "num_turns": 2, "num_tokens": 9, **more}))
    return found


RISES = recorded(
    "rate of 5e-4", **{f"batch__{name}": later(0.48, 0.97) for name in ("success", "reward")}
)


@pytest.mark.parametrize(
    ("ends", "levels", "faults"),
    [
        ((0.39, 0.34), {f"t{n}": later(0.48, 0.97) for n in range(9)}, ["learnt by heart"]),
        ((0.39, 0.70), {f"t{n}": later(0.48, 0.97) for n in range(9)}, []),
        ((0.93, 0.91), {f"t{n}": later(0.48, 0.97) for n in range(9)}, []),
        ((0.39, 0.34), {f"t{n}": later(0.48, 0.97) for n in range(400)}, []),
        ((0.39, 0.34), {f"t{n}": lambda part, n=n: 0.2 + n / 12 for n in range(9)}, []),
    ],
    ids=["by heart", "learnt", "near the ceiling", "many tasks", "nothing rose"],
)
def test_tasks_learnt_by_heart_are_told_from_tasks_that_teach(
    ends: tuple[float, float], levels: Mapping[str, Callable[[float], float]], faults: list[str]
) -> None:
    held = [evaluated(step, share) for step, share in zip((0, len(RISES)), ends, strict=True)]
    signs = Signs(RISES, {}, played_tasks(RISES, levels), evaluations=held)
    found = diagnose(signs)
    assert [one.fault for one in found] == faults
    for one in found:
        assert "from 0.39 to 0.34, with a standard error of 0.07" in one.found


def test_a_curriculum_that_gets_easier_is_not_learnt_by_heart() -> None:
    """Success rises, since the easier tasks come later; each task is as hard as it was."""
    chance, episodes = random.Random(1), []
    for one in played_tasks(RISES, {"t": lambda part: 0.5}):
        part = (one.step or 0) / len(RISES)
        task = min(8, max(0, round(chance.gauss(8 * part, 2))))
        won = chance.random() < 0.3 + task / 12
        episodes.append(one._replace(task_id=f"t{task}", success=won, reward=float(won)))
    held = [evaluated(0, 0.39), evaluated(len(RISES), 0.34)]
    assert diagnose(Signs(RISES, {}, episodes, evaluations=held)) == ()


def test_chance_is_not_learnt_by_heart() -> None:
    """The figure of docs/why.md: sound recorded runs of nine tasks whose held-out success has the level of training."""
    sound = [run for name, run in RECORDED.items() if name not in FAULTY]
    sound += [run for run in RUNS_OF_TASKS.values() if became(run) == "sound"]
    num_accused = 0
    for run in sound:
        steps, settings = recorded(run), run.get("settings", {})
        levels = windows([step["batch/success"] for step in steps])
        level = {"t": lambda part, of=levels: of[min(len(of) - 1, int(part * len(of)))]}
        for seed in range(3):
            episodes = played_tasks(steps, {f"t{n}": level["t"] for n in range(9)}, seed=seed)
            signs = Signs(steps, settings, episodes, evaluations=held_out(steps, seed=seed))
            num_accused += rules_of_steps.by_heart(signs) is not None
    assert (len(sound) * 3, num_accused) == (153, 0)


def test_a_run_whose_held_out_success_rose_does_not_stand_still() -> None:
    """A run at temperature 0 was told that its policy hardly moves."""
    steps, settings = recorded("rate of 2e-5"), RECORDED["rate of 2e-5"]["settings"]
    assert [one.fault for one in diagnose(Signs(steps, settings))] == ["rate too low"]
    for last, faults in ((0.68, []), (0.44, ["rate too low"])):
        held = [evaluated(0, 0.32), evaluated(len(steps), last)]
        assert [one.fault for one in diagnose(Signs(steps, settings, evaluations=held))] == faults
    verdict = verdict_of(steps, settings, [evaluated(0, 0.32), evaluated(len(steps), 0.68)])
    assert verdict is not None
    assert verdict.figures.startswith("healthy: success on held-out tasks 0.32 -> 0.68; ")


def test_a_flat_run_near_its_ceiling_has_no_fault() -> None:
    for name in ("rate of 2e-5", "rate of 1e-7", FLAT):
        high = {f"batch__{one}": later(0.97, 0.98) for one in ("success", "reward")}
        steps, settings = recorded(name, **high), RECORDED[name].get("settings", {})
        assert diagnose(Signs(steps, settings)) == ()
        verdict = verdict_of(steps, settings)
        assert verdict is not None
        assert verdict.figures == "nothing left to learn: success is 0.98"
