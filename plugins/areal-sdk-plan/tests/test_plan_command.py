"""`areal-sdk plan`: what it prints and what it refuses."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from areal_sdk import ConfigError
from areal_sdk.shapes import SHAPES
from areal_sdk_plan.command import plan as command
from areal_sdk_plan.hardware import GPUS, Efficiencies, engine_widths, find_gpu
from areal_sdk_plan.parts import Described, PartsWithAssumptions, as_measured, from_hardware
from areal_sdk_plan.splits import Wanted, best_split, with_rules

SMALL = ("--model", "1.5B", "--gpu", "h100", "--batch", "32", "--output", "200")


def plan(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def small(*, group_size: int | None = None, drains: bool = False) -> PartsWithAssumptions:
    described = from_hardware("1.5B", "h100", workload=Described(512, 200, 1, 0.0, 2048))
    parts = with_rules(described.parts, batch=32, group_size=group_size, drains=drains)
    return replace(described, parts=parts)


def test_a_plan_from_hardware_names_the_split_and_every_assumption() -> None:
    output = plan(*SMALL, "--gpus", "4", "--price", "2.5")
    assert "$ / M tokens" in output
    assert "assumed:" in output
    assert "989 TFLOP/s" in output
    assert "a rough guess" in output


def test_the_same_question_has_the_same_answer_and_more_gpus_give_more() -> None:
    asked = (*SMALL, "--gpus", "2", "--gpus", "8", "--eta", "1", "--json")
    first, again = json.loads(plan(*asked)), json.loads(plan(*asked))
    assert first == again
    small, large = first["plans"]
    assert large["trained_tokens_per_s"] > small["trained_tokens_per_s"]
    assert large["engines"] * large["gpus_per_engine"] + large["trainer_ranks"] <= 8
    assert max(map(int, large["staleness"])) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --from RUN, or --model"),
        (("--model", "7B", "--gpu", "abacus"), "unknown GPU 'abacus'"),
        (("--model", "70B", "--gpus", "1"), "too few"),
        (("--model", "7B", "--batch", "100"), "not a multiple of the group size"),
        (
            ("--model", "7B", "--prompt", "9000"),
            "--prompt 9000 leaves no token to sample in --context 8192",
        ),
        (("--model", "7B", "--tp", "3"), "--tp 3 does not share 28 heads .* take 1, 2, 4"),
        (
            ("--model", "32B", "--tp", "1", "--context", "32768"),
            "room for 9,430 tokens .* an episode may have 32,768: --tp 2 is enough",
        ),
        (
            ("--model", "70B", "--gpu", "l4", "--context", "9000000"),
            "no engine of up to 64 GPUs with 24 GB",
        ),
        (("--model", "7B", "--engines", "9", "--gpus", "8"), "8 GPUs have no such split"),
        (("--model", "7B", "--sync", "--ranks", "4"), "leave out --engines and --ranks"),
        (("--model", "7B", "--measured", "fast"), "is not TOKENS@GPUS"),
        (("--model", "7B", "--measured", "nan@8"), "'nan@8' is not TOKENS@GPUS"),
        (("--model", "7B", "--measured", "1e300@8"), "'1e300@8' is not TOKENS@GPUS"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_cure(
    arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("option", ["--price", "--tool"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused_by_name(option: str, value: str) -> None:
    done = CliRunner().invoke(command, [*SMALL, option, value])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': '{value}' is no finite number." in done.stderr


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--turns", "100000"), "cuts episodes: of --turns 100,000 and --output 200 they play"),
        (("--output", "100000000"), "cuts episodes: of --turns 1 and --output 100,000,000 they"),
        ((), None),
    ],
)
def test_a_plan_says_that_the_context_cuts_what_was_asked(
    asked: tuple[str, ...], told: str | None
) -> None:
    output = plan(*SMALL, *asked, "--gpus", "4", "--eta", "1", "--engines", "1", "--ranks", "1")
    assert ("cuts episodes" in output) == (told is not None)
    assert (told or "") in output


def test_progress_is_told_without_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [*SMALL, "--gpus", "4", "--eta", "1"]
    monkeypatch.setattr("areal_sdk_plan.command._EVERY_S", 0.0)
    done = CliRunner().invoke(command, asked)
    assert done.exit_code == 0
    first = done.stderr.splitlines()[0]
    assert first.startswith("1 simulated; ")
    assert "\x1b" not in done.stderr


def test_a_split_uses_no_more_than_it_is_given() -> None:
    split = best_split(small().parts, 16, wanted=Wanted(eta=1))
    assert split.engines * split.gpus_per_engine + split.ranks <= 16
    assert 0.99 < split.available < 1.0


def test_the_width_of_engines_is_searched() -> None:
    parts = with_rules(from_hardware("7B", "h100", workload=Described(output=200)).parts, batch=32)
    assert sorted(parts.engines) == [1, 2, 4]
    found = best_split(parts, 16, wanted=Wanted(eta=1))
    for width, engine in parts.engines.items():
        alone = best_split(replace(parts, engines={width: engine}), 16, wanted=Wanted(eta=1))
        assert found.tokens_per_s >= 0.97 * alone.tokens_per_s
    assert found.gpus_per_engine > 1  # few requests: the time is that of one answer


def test_an_engine_holds_the_longest_episode() -> None:
    for context, widths in ((8192, [1, 2, 4, 8]), (32768, [2, 4, 8]), (400_000, [4, 8])):
        kept = engine_widths(
            SHAPES["32B"], GPUS["h100"], context=context, efficiency=Efficiencies()
        )
        assert kept == widths


@pytest.mark.parametrize(
    "name",
    [
        "h800",
        "H20",
        "NVIDIA H200",
        "NVIDIA A100-SXM4-80GB",
        "mi300x",
        "RTX 4090",
        "rtx4090",
        "L40S",
    ],
)
def test_gpus_are_known_by_the_names_that_people_and_drivers_use(name: str) -> None:
    assert find_gpu(name).tflops > 100


def test_more_gpus_than_a_batch_can_use_stay_spare() -> None:
    split = best_split(small().parts, 1_000_000, wanted=Wanted(eta=0))
    assert split.spare > 990_000
    assert split.ranks <= 32
    assert split.engines <= 32


def test_a_given_split_is_planned_as_it_is() -> None:
    split = best_split(small().parts, 16, wanted=Wanted(eta=1, engines=3, ranks=5))
    assert (split.engines, split.ranks) == (3, 5)
    assert split.spare == 16 - 3 * split.gpus_per_engine - 5
    sync = best_split(small().parts, 16, wanted=Wanted(is_sync=True))
    assert (sync.is_colocated, sync.ranks, sync.setup.rules.gate.max_staleness) == (True, 16, 0)


def test_draining_and_smaller_groups_are_rules_of_the_plan() -> None:
    drained = best_split(small(drains=True).parts, 8, wanted=Wanted(eta=1, engines=1, ranks=1))
    interrupted = best_split(small().parts, 8, wanted=Wanted(eta=1, engines=1, ranks=1))
    assert drained.tokens_per_s < interrupted.tokens_per_s
    assert small(group_size=8).parts.setup.rules.rollout.group_size == 8


def test_more_updates_of_a_step_cost_time() -> None:
    def step_s(minibatches: int) -> float:
        parts = from_hardware("1.5B", "h100", workload=Described(), minibatches=minibatches).parts
        return parts.setup.trainer.step_s(1e6, 512)

    assert step_s(8) - step_s(1) == pytest.approx(7 * Efficiencies().update_s, rel=0.2)


def test_a_measured_throughput_calibrates_the_plan() -> None:
    wanted = Wanted(eta=1)
    before = best_split(small().parts, 8, wanted=wanted)
    measured = 0.5 * before.tokens_per_s
    parts = as_measured(small().parts, measured, gpus=8, wanted=wanted, note=lambda _: None)
    assert best_split(parts, 8, wanted=wanted).tokens_per_s == pytest.approx(measured, rel=0.1)


def test_the_search_tells_what_it_simulates() -> None:
    told: list[str] = []
    best_split(small().parts, 8, wanted=Wanted(eta=1), note=told.append)
    assert len(told) > 4
    assert all(line.startswith("8 GPUs: ") for line in told)
