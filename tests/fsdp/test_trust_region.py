"""The bound on an update, taking part of an update back, and the rate that follows the bound."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.objectives import sequence_means
from areal_sdk.config.sections.learning import FIRST_LEARNING_RATE
from areal_sdk.errors import CheckpointError
from areal_sdk.fsdp.checkpoint import load_checkpoint, save_checkpoint
from areal_sdk.fsdp.directories import STATE_FILE
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.step.probe import NUM_TERMS, SHORTEST, Likeliest, sampled
from areal_sdk.fsdp.step.trust_region import (
    CLOSE,
    FACTOR,
    OF_A_SEQUENCE,
    PER_TOKEN,
    RECENT,
    REMEMBERED,
    SLOW,
    Distance,
    Moved,
    Update,
    UpdateLimit,
    summary,
)
from areal_sdk.telemetry.checksums import MANIFEST_FILE, write_manifest
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

from .episodes import make_groups
from .specs import changed, trainer_spec, with_preset

CALM = Moved(kl=1e-6, kl_behaviour=0.0, kl_sequence=0.0, share=1.0, filled=0.01)
HELD = Moved(kl=0.02, kl_behaviour=0.0, kl_sequence=0.0, share=0.5, filled=1.0)
FULL = Moved(kl=0.01, kl_behaviour=0.0, kl_sequence=0.0, share=1.0, filled=0.9)


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    return trainer_spec(model_dir, precision="float32", warmup_steps=0, learning_rate=1e-3)


def weights(trainer: RankTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.policy.named_weights().values()])


# taking part of an update back


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("fused", [True, False])
def test_what_is_left_of_an_update_is_the_update_with_a_smaller_rate(
    weight_decay: float, fused: bool
) -> None:
    def updated(last_rate: float) -> tuple[nn.Linear, torch.optim.AdamW]:
        torch.manual_seed(0)
        layer = nn.Linear(7, 5)
        optimizer = torch.optim.AdamW(
            layer.parameters(), lr=0.01, weight_decay=weight_decay, fused=fused
        )
        for step in range(4):
            optimizer.param_groups[0]["lr"] = last_rate if step == 3 else 0.01
            optimizer.zero_grad()
            layer(torch.randn(3, 7)).square().sum().backward()
            optimizer.step()
        return layer, optimizer

    whole, optimizer = updated(0.1)
    update = Update(optimizer, list(whole.parameters()))
    update.scale(1.0, 0.5)
    update.scale(0.5, 0.03)
    smaller, _ = updated(0.1 * 0.03)
    for one, other in zip(whole.parameters(), smaller.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    update.scale(0.03, 0.0)
    before, _ = updated(0.0)
    for one, other in zip(whole.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_parameter_without_a_gradient_was_not_updated_and_is_left_alone() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([used, unused], lr=0.1)
    for parameters in ([used, unused], [used]):
        optimizer.zero_grad()
        for parameter in parameters:
            parameter.grad = torch.ones(2)
        optimizer.step()
    kept = unused.detach().clone()
    Update(optimizer, [used]).scale(1.0, 0.0)
    assert torch.equal(unused, kept)


# the bound


def moved_all(kl: float) -> Distance:
    """The distance of a policy that moved as far on every sequence."""
    return Distance(kl, 0.0, kl)


def held(kl_of_share: dict[str, float], *, bound: float, power: float) -> tuple[Moved, float, int]:
    """A full update of KL `whole` that falls with `power`; the number of measurements too."""
    now, count = 1.0, 0

    class OnPaper:
        def scale(self, share: float, to: float) -> None:
            nonlocal now
            assert share == pytest.approx(now)
            now = to

    def measure() -> Distance:
        nonlocal count
        count += 1
        return moved_all(kl_of_share["whole"] * now**power)

    limit = UpdateLimit(0.3, may_rise=True, noise=0.0)
    moved = limit.hold(OnPaper(), measure, bound=bound)  # type: ignore[arg-type]
    return moved, now, count


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("whole", [0.0, 0.9, 1.1, 30.0, 1e6])
def test_an_update_is_held_within_the_bound_and_no_further_than_needed(
    whole: float, power: float
) -> None:
    moved, now, count = held({"whole": whole}, bound=1.0, power=power)
    assert moved.share == pytest.approx(now)
    assert moved.kl <= CLOSE
    if whole <= 1.0:
        assert (moved.share, count) == (1.0, 1)
    else:
        assert moved.kl > 0.5, "most of what the bound allows is left"


@pytest.mark.parametrize("small", [0.0, 0.2], ids=["nothing", "little"])
@pytest.mark.parametrize("step", [0.05, 0.3, 0.9])
def test_an_update_that_rounds_to_little_when_it_is_scaled_is_held(
    step: float, small: float
) -> None:
    """A small part of an update changes few logprobs in bfloat16, and a larger part changes too much."""
    now = 1.0

    class Rounded:
        def scale(self, share: float, to: float) -> None:
            nonlocal now
            now = to

    def measure() -> Distance:
        return moved_all(30.0 if now > step else small)

    limit = UpdateLimit(0.3, may_rise=True)
    moved = limit.hold(Rounded(), measure, bound=1.0)  # type: ignore[arg-type]
    assert moved.kl == 0.0, "the small KL is the noise"
    assert moved.share == pytest.approx(now)
    assert step / 4 < moved.share <= step, "the largest part that was within the bound is left"


class Noisy:
    """An update of KL `whole`, measured with rounding errors that add `noise` to every KL."""

    def __init__(self, *, whole: float, noise: float) -> None:
        self.now, self.count, self.whole, self.noise = 1.0, 0, whole, noise

    def scale(self, share: float, to: float) -> None:
        assert share == pytest.approx(self.now)
        self.now = to

    def measure(self) -> Distance:
        self.count += 1
        return moved_all(self.whole * self.now**2 + self.noise)

    def held(self, limit: UpdateLimit) -> Moved:
        return limit.hold(self, self.measure, bound=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.0, 0.5, 30.0])
def test_what_rounding_alone_changes_is_no_movement(noise: float) -> None:
    limit = UpdateLimit(0.3, may_rise=True)
    small = Noisy(whole=0.1, noise=noise)
    moved = small.held(limit)
    assert (moved.share, small.now) == (1.0, 1.0)
    assert moved.filled == pytest.approx(0.1, rel=0.02)
    assert small.count == 2, "once more, for the noise"
    again = Noisy(whole=0.1, noise=noise)
    assert again.held(limit).share == 1.0
    assert again.count == 1, "the noise is known"
    large = Noisy(whole=50.0, noise=noise)
    large.held(limit)
    assert 0.4 < 50.0 * large.now**2 <= CLOSE


def test_noise_that_grows_or_falls_is_measured_again() -> None:
    limit = UpdateLimit(0.3, may_rise=True)
    for noise in (2.0, 20.0, 1.0):
        update = Noisy(whole=0.1, noise=noise)
        assert update.held(limit).share == 1.0
    assert limit.noise == pytest.approx(1.1), "the least KL since it was measured"


def test_where_nothing_rounds_no_pass_measures_noise() -> None:
    limit = UpdateLimit(0.3, may_rise=True, rounds=False)
    limit.state = {
        "noise": 0.5,
        "sequence_noise": 0.5,
    }  # as bfloat16 had it, before a resume in float32
    large = Noisy(whole=50.0, noise=0.0)
    moved = large.held(limit)
    assert large.count == 2, "the update, and the share that fills the bound"
    assert moved.kl == pytest.approx(1.0, rel=0.01), "all of it is movement"
    assert limit.noise is None, "a resume in bfloat16 measures it"


def test_a_share_that_moves_more_when_it_is_taken_again_is_taken_back_as_a_whole() -> None:
    now, smaller = 1.0, 0

    class Rounded:
        def scale(self, share: float, to: float) -> None:
            nonlocal now, smaller
            smaller += to < now
            now = to

    def measure() -> Distance:
        return moved_all(0.0 if now == 0.0 or (now < 0.5 and smaller == 1) else 30.0)

    limit = UpdateLimit(0.3, may_rise=True, noise=0.0)
    moved = limit.hold(Rounded(), measure, bound=1.0)  # type: ignore[arg-type]
    assert (moved.share, moved.kl, now) == (0.0, 0.0, 0.0)


def test_an_update_that_broke_the_policy_is_taken_back_as_a_whole() -> None:
    moved, now, _ = held({"whole": math.nan}, bound=1.0, power=1.0)
    assert (moved.share, now) == (0.0, 0.0)


def test_a_sequence_that_moves_far_holds_an_update_whose_mean_is_small() -> None:
    now = 1.0

    class OnPaper:
        def scale(self, share: float, to: float) -> None:
            nonlocal now
            now = to

    def measure() -> Distance:
        return Distance(0.1 * now**2, 0.0, 20.0 * now**2)

    limit = UpdateLimit(0.3, may_rise=True, noise=0.0)
    moved = limit.hold(OnPaper(), measure, bound=1.0)  # type: ignore[arg-type]
    assert 0.5 * OF_A_SEQUENCE < 20.0 * now**2 <= CLOSE * OF_A_SEQUENCE
    assert moved.kl == pytest.approx(0.1 * now**2, rel=1e-3), "the mean is reported"
    assert moved.filled == pytest.approx(20.0 * now**2 / OF_A_SEQUENCE, rel=1e-3)


def test_the_bound_is_of_an_episode_and_of_a_token() -> None:
    region = UpdateLimit(0.3, may_rise=True)
    assert region.bound(3.0) == PER_TOKEN
    assert region.bound(1000.0) == pytest.approx(3e-4)
    assert UpdateLimit(0.0, may_rise=True).bound(3.0) == math.inf


def test_a_step_of_several_updates_moved_by_all_of_them() -> None:
    assert summary([FULL, HELD])["kl_step"] == pytest.approx(FULL.kl + HELD.kl)


# the rate


def test_a_tighter_bound_holds_also_where_none_was_asked_for() -> None:
    for per_episode, untightened in ((0.3, 0.003), (0.0, math.inf)):
        region = UpdateLimit(per_episode, may_rise=False)
        assert region.bound(100.0) == pytest.approx(untightened)
        region.tighten()
        assert region.bound(100.0) == pytest.approx(0.0015)
        region.tighten()
        assert region.bound(100.0) == pytest.approx(0.00075)


def test_the_rate_rises_only_after_calm_steps_with_a_spread_of_rewards() -> None:
    region = UpdateLimit(0.3, may_rise=True)
    for _ in range(REMEMBERED - 1):
        region.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
        assert region.factor == 1.0
    region.follow([CALM], spread=0.1, schedule=1.0, is_warm=True)
    assert region.factor == 1.0, "few groups differ: more noise than gradient"
    region.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
    assert region.factor == FACTOR
    region.follow([CALM, FULL], spread=1.0, schedule=1.0, is_warm=True)
    region.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
    assert region.factor == FACTOR, "one full update, and the steps are counted anew"


def test_calm_steps_of_a_nearly_solved_run_leave_the_rate_as_it_is() -> None:
    region = UpdateLimit(0.3, may_rise=True)
    region.follow([FULL], spread=1.0, schedule=1.0, is_warm=True)
    for spread in (0.25, 0.5, 0.25, 0.25, 0.5, 0.25):
        region.follow([CALM], spread=spread, schedule=1.0, is_warm=True)
    assert region.factor == 1.0, "one group of four that differs says little of a full batch"
    region.follow([FULL], spread=0.25, schedule=1.0, is_warm=True)
    region.follow([CALM], spread=0.75, schedule=1.0, is_warm=True)
    assert (region.factor, region.num_calm) == (1.0, 1), "a full update counts, whoever differs"


@pytest.mark.parametrize("spread", [0.25, 0.4, 0.49])
def test_the_rate_rises_for_a_task_that_few_groups_ever_solve(spread: float) -> None:
    region = UpdateLimit(0.3, may_rise=True)
    for _ in range(REMEMBERED):
        region.follow([CALM], spread=spread, schedule=1.0, is_warm=True)
    assert region.factor == FACTOR
    again = UpdateLimit(0.3, may_rise=True)
    again.state = region.state
    assert again.widest == spread, "a resume goes on with the spread that was seen"


def test_under_a_schedule_a_step_is_calm_by_the_square_of_what_the_schedule_left() -> None:
    whole = replace(CALM, filled=0.2)
    for schedule, factor in ((1.0, FACTOR), (0.5, 1.0)):
        region = UpdateLimit(0.3, may_rise=True)
        for _ in range(REMEMBERED):
            region.follow([whole], spread=1.0, schedule=schedule, is_warm=True)
        assert region.factor == factor
    region = UpdateLimit(0.3, may_rise=True)
    for _ in range(REMEMBERED):
        region.follow([replace(CALM, filled=0.04)], spread=1.0, schedule=0.5, is_warm=True)
    assert region.factor == FACTOR


def test_calm_steps_count_neither_in_the_warm_up_nor_where_an_update_was_taken_back() -> None:
    region = UpdateLimit(0.3, may_rise=True)
    for _ in range(REMEMBERED):
        region.follow([CALM], spread=1.0, schedule=1.0, is_warm=False)
    region.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
    assert region.factor == 1.0
    gone = Moved(kl=0.0, kl_behaviour=0.0, kl_sequence=0.0, share=0.0, filled=0.0)
    region = UpdateLimit(0.3, may_rise=True)
    for _ in range(REMEMBERED):
        region.follow([gone], spread=1.0, schedule=1.0, is_warm=True)
    fallen = region.factor
    region.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
    assert region.factor == fallen < 1.0


def after_jumps(region: UpdateLimit) -> UpdateLimit:
    """`region` after as many held steps as leave the rate as it is."""
    for _ in range(RECENT // 2):
        region.follow([HELD], spread=1.0, schedule=1.0, is_warm=True)
    return region


@pytest.mark.parametrize("between", [0, 1, 2])
def test_the_rate_falls_once_most_of_the_last_steps_were_held(between: int) -> None:
    """A jump among calm steps says nothing of the first rate of "auto"."""
    region = UpdateLimit(0.3, may_rise=True)
    factors = []
    for step in range(9):
        moved = CALM if step % (between + 1) else HELD
        region.follow([moved], spread=0.0, schedule=1.0, is_warm=True)
        factors.append(region.factor)
    kept = {0: 2, 1: 4, 2: 9}[between]
    assert factors[:kept] == [1.0] * kept
    assert all(factor < 1.0 for factor in factors[kept:])


def test_beyond_a_rate_at_which_a_step_was_held_alone_the_rate_rises_slowly() -> None:
    region = UpdateLimit(0.3, may_rise=True)
    region.follow([HELD], spread=1.0, schedule=1.0, is_warm=True)
    for _ in range(REMEMBERED):
        assert region.factor == 1.0, "and the calm steps count anew"
        region.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
    assert region.factor == pytest.approx(SLOW)


def test_a_resume_remembers_the_jumps_of_the_last_steps() -> None:
    resumed = UpdateLimit(0.3, may_rise=True)
    resumed.state = after_jumps(UpdateLimit(0.3, may_rise=True)).state
    assert resumed.factor == 1.0
    resumed.follow([HELD], spread=1.0, schedule=1.0, is_warm=True)
    assert resumed.factor == pytest.approx(0.5)


def test_a_rate_above_the_first_falls_with_the_first_jump() -> None:
    region = UpdateLimit(0.3, may_rise=True, factor=4.0)
    region.follow([HELD], spread=1.0, schedule=1.0, is_warm=True)
    assert region.factor == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("share", "factor"), [(0.9, 1 / FACTOR), (0.5, 0.5), (0.3, 0.3), (0.1, 0.25), (0.0, 0.25)]
)
def test_the_rate_falls_to_what_a_held_step_had_room_for(share: float, factor: float) -> None:
    region = after_jumps(UpdateLimit(0.3, may_rise=True))
    region.follow([FULL, replace(HELD, share=share)], spread=0.0, schedule=0.5, is_warm=False)
    assert region.factor == pytest.approx(factor)
    region.follow([], spread=1.0, schedule=1.0, is_warm=True)
    assert region.factor == pytest.approx(factor), "nothing else moves it"


def test_beyond_what_a_held_step_had_room_for_the_rate_rises_slowly() -> None:
    region = UpdateLimit(0.3, may_rise=True, factor=100.0)
    region.follow([replace(HELD, share=0.4)], spread=1.0, schedule=1.0, is_warm=True)
    region.follow([replace(HELD, share=0.9)], spread=1.0, schedule=1.0, is_warm=True)
    assert region.factor == pytest.approx(40 / FACTOR)
    assert region.roomy == pytest.approx(36.0)
    rises = []
    for _ in range(REMEMBERED + 2):
        before = region.factor
        region.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
        rises.append(region.factor / before)
    assert rises == pytest.approx([1.0, 1.0, SLOW, SLOW, SLOW])
    region.factor = 36 / FACTOR
    again = UpdateLimit(0.3, may_rise=True)
    again.state = region.state
    again.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
    assert again.factor == pytest.approx(36.0), "back to that point it rises fast"
    again.follow([CALM], spread=1.0, schedule=1.0, is_warm=True)
    assert again.factor == pytest.approx(36.0 * SLOW)


def test_a_rate_that_was_set_is_the_highest_and_comes_back_to_it() -> None:
    region = UpdateLimit(0.3, may_rise=False)
    region.follow([HELD], spread=1.0, schedule=1.0, is_warm=True)
    assert region.rate_factor == pytest.approx(0.5)
    for _ in range(REMEMBERED + 7):
        region.follow([CALM], spread=0.1, schedule=1.0, is_warm=True)
    assert region.rate_factor == 1.0, "also where few groups ever differ"
    region.follow([HELD], spread=1.0, schedule=1.0, is_warm=True)
    for _ in range(2 * REMEMBERED):
        region.follow([CALM], spread=0.0, schedule=1.0, is_warm=True)
    assert region.rate_factor == pytest.approx(0.5), "no group differs: nothing was learnt"
    region.factor = 30.0  # as a run at "auto" left it, which is resumed with a rate
    assert region.rate_factor == 1.0


@pytest.mark.parametrize(("first", "rate"), [(1e-3, 2e-4), (1e-2, 2e-4), (1e-4, 1e-4)])
def test_a_resume_with_another_rate_goes_on_with_the_rate_that_the_run_had(
    first: float, rate: float
) -> None:
    before = UpdateLimit(0.3, may_rise=False, first_rate=1e-3, factor=0.2, roomy=0.5)
    after = UpdateLimit(0.3, may_rise=False, first_rate=first)
    after.state = before.state
    assert first * after.rate_factor == pytest.approx(rate)
    assert first * after.roomy == pytest.approx(5e-4)


def test_without_a_bound_the_rate_is_the_one_that_was_set() -> None:
    region = UpdateLimit(0.0, may_rise=True, factor=0.1)
    region.follow([HELD], spread=1.0, schedule=1.0, is_warm=True)
    assert region.rate_factor == 1.0


# the sample


def made_groups(answers: Sequence[Sequence[Sequence[int]]]) -> list[TrajectoryGroup]:
    """Groups by the trained tokens of their episodes, after a prompt of one token."""
    return [
        TrajectoryGroup(
            f"g{number}",
            "task",
            tuple(
                Trajectory(
                    episode_id=f"g{number}/{sibling}",
                    task_id="task",
                    tokens=(0, *answer),
                    loss_mask=(False,) + (True,) * len(answer),
                    logprobs=(0.0,) + (-1.0,) * len(answer),
                    versions=(-1,) + (0,) * len(answer),
                    temperatures=(1.0,) * (len(answer) + 1),
                    turn_of_token=(-1,) + (0,) * len(answer),
                    reward=0.0,
                )
                for sibling, answer in enumerate(of_group)
            ),
        )
        for number, of_group in enumerate(answers)
    ]


def drawn_groups(num_groups: int, size: int, length: int) -> list[TrajectoryGroup]:
    rng = np.random.default_rng(0)
    return made_groups(rng.integers(0, 99, (num_groups, size, length)).tolist())


def names(groups: Sequence[TrajectoryGroup]) -> set[str]:
    return {t.episode_id for group in groups for t in group.trajectories}


def test_a_sample_is_all_of_a_small_minibatch_and_a_part_of_a_large_one() -> None:
    few = drawn_groups(3, 4, 4)
    assert sampled(few, seed=0) == few
    many = drawn_groups(100, 8, 64)
    chosen = sampled(many, seed=0)
    assert sum(t.num_trained for group in chosen for t in group.trajectories) >= NUM_TERMS
    assert sorted(len(group.trajectories) for group in chosen) == [1] + [2] * 6, (
        "a sixty-fourth part, two of a group"
    )
    assert names(sampled(many, seed=1)) != names(chosen)


def test_the_order_of_groups_and_siblings_does_not_change_the_sample() -> None:
    many = drawn_groups(20, 4, 32)
    turned = [replace(g, trajectories=g.trajectories[::-1]) for g in reversed(many)]
    assert names(sampled(many, seed=3)) == names(sampled(turned, seed=3))


def test_equal_answers_are_in_the_sample_as_often_as_others() -> None:
    rng = np.random.default_rng(2)
    lone, converged, count = 0, 0, 0
    for seed in range(50):
        answers = rng.integers(0, 99, (64, 8, 32))
        answers[::2] = answers[::2, :1]  # every other group has converged
        answers[::4, 7] = 99  # but for one answer, in every fourth
        chosen = sampled(made_groups(answers.tolist()), seed=seed)
        of_kind = [(int(group.id[1:]), t) for group in chosen for t in group.trajectories]
        count += len(of_kind)
        converged += sum(number % 2 == 0 for number, _ in of_kind)
        lone += sum(t.tokens[1] == 99 for _, t in of_kind)
    assert converged / count == pytest.approx(1 / 2, abs=0.06)
    assert lone / count == pytest.approx(1 / 32, abs=0.015)


# a trainer


def test_a_step_that_is_far_too_large_is_held_and_is_a_smaller_step(spec: TrainerSpec) -> None:
    groups = make_groups()
    bold = RankTrainer(changed(spec, learning_rate=0.05))
    metrics = bold.step(groups, version=0)
    assert metrics["update_share"] < 0.5
    assert 0.0 < metrics["kl_step"] <= CLOSE * PER_TOKEN
    rate = 0.05 * metrics["update_share"]
    small = RankTrainer(changed(spec, learning_rate=rate, trust_region=0.0))
    expected = small.step(groups, version=0)
    assert expected["kl_step"] == pytest.approx(metrics["kl_step"], rel=1e-2)
    torch.testing.assert_close(weights(bold), weights(small), rtol=1e-4, atol=1e-6)


def test_the_likeliest_tokens_tell_what_moved_and_never_too_much() -> None:
    torch.manual_seed(0)
    logits_RV = torch.randn(40, 5000) * 3.0
    logits_RV[:, :20] += 8.0
    before_RV = logits_RV.log_softmax(-1)
    kept = Likeliest()
    for piece in (before_RV[:30], before_RV[30:]):
        kept.keep(piece)
    collapsed = logits_RV.clone()
    collapsed[:, 4000] += 30.0  # one that was unlikely
    for after in (logits_RV + torch.randn(40, 5000) * 0.01, logits_RV * 1.5, collapsed):
        after_RV = after.log_softmax(-1)
        divergence = kept.divergence()
        found_R = torch.cat([divergence(after_RV[:30]), divergence(after_RV[30:])])
        p_RV, q_RV = (x_RV.double().log_softmax(-1) for x_RV in (logits_RV, after))
        exact_R = (p_RV.exp() * (p_RV - q_RV)).sum(-1)
        assert (found_R <= 1.01 * exact_R + 1e-6).all()
        assert found_R.mean() > 0.8 * exact_R.mean()


def test_the_kl_of_a_step_is_that_of_the_whole_vocabulary(spec: TrainerSpec) -> None:
    groups = make_groups(2, 4)
    trainer = RankTrainer(changed(spec, trust_region=0.0))
    metrics = trainer.step(groups, version=0)
    old = AutoModelForCausalLM.from_pretrained(spec.model_dir, dtype=torch.float32)
    new = AutoModelForCausalLM.from_pretrained(spec.model_dir, dtype=torch.float32)
    new.load_state_dict(dict(trainer.policy.named_weights()), strict=False)
    exact = []
    for trajectory in (t for group in groups for t in group.trajectories):
        tokens, mask = torch.tensor(trajectory.tokens), torch.tensor(trajectory.loss_mask)
        heat = torch.tensor(trajectory.temperatures)[1:, None]
        with torch.no_grad():
            p, q = (
                (model(tokens[None]).logits[0, :-1] / heat).log_softmax(-1) for model in (old, new)
            )
        exact.append((p.exp() * (p - q)).sum(-1)[mask[1:]].tolist())
    assert metrics["kl_step"] == pytest.approx(
        sum(map(sum, exact)) / sum(map(len, exact)), rel=0.02
    )
    furthest = max(sum(row) / max(SHORTEST, len(row)) for row in exact)
    assert metrics["kl_sequence"] == pytest.approx(furthest, rel=0.02)


def test_a_short_sequence_counts_as_a_longer_one() -> None:
    terms = SimpleNamespace(
        sequences_T=torch.tensor([0, 0, 0, 1, 2]),
        mask_T=torch.tensor([True, True, True, True, False]),
    )
    values_T = torch.tensor([1.0, 2.0, 3.0, 8.0, math.nan])
    for shortest, expected in ((1.0, [2.0, 2.0, 2.0, 8.0, 0.0]), (4.0, [1.5, 1.5, 1.5, 2.0, 0.0])):
        assert sequence_means(values_T, terms, shortest=shortest).tolist() == expected


def test_the_bound_an_episode_is_of_all_its_branches(spec: TrainerSpec) -> None:
    tokens_a_branch, per_episode = 10, 0.1
    of_branches = [
        replace(
            group,
            trajectories=tuple(
                replace(t, episode_id=f"{group.id}-{number // 4}", reward=float(number // 4))
                for number, t in enumerate(group.trajectories)
            ),
        )
        for group in make_groups(3, 8)
    ]
    assert per_episode / tokens_a_branch == PER_TOKEN, "a branch alone would have the bound a token"
    trainer = RankTrainer(changed(spec, learning_rate=0.05, trust_region=per_episode))
    metrics = trainer.step(of_branches, version=0)
    assert metrics["update_share"] < 1.0
    assert metrics["kl_step"] <= CLOSE * per_episode / (4 * tokens_a_branch)


def test_in_bfloat16_an_update_is_not_taken_for_what_rounding_does(spec: TrainerSpec) -> None:
    """A bound below what is measured when nothing moves would hold every update, to nothing."""
    bold = changed(spec, precision="bfloat16", learning_rate=1e-6, trust_region=7e-6)
    trainer = RankTrainer(bold)
    metrics = trainer.step(make_groups(), version=0)
    bound = trainer.region.bound(10.0)  # there are ten trained tokens an episode
    assert trainer.region.noise is not None
    assert metrics["kl_step"] + trainer.region.noise > bound > metrics["kl_step"]
    assert metrics["update_share"] == 1.0


@pytest.mark.parametrize(
    ("preset", "precision"), [("grpo", "float32"), ("ppo", "float32"), ("grpo", "bfloat16")]
)
def test_a_resumed_trainer_goes_on_with_the_rate_that_it_had(
    spec: TrainerSpec, tmp_path: Path, preset: str, precision: str
) -> None:
    spec = with_preset(changed(spec, learning_rate="auto", precision=precision), preset)
    whole = RankTrainer(spec)
    rates = [whole.step(make_groups(seed=s), version=0)["learning_rate"] for s in range(5)]
    assert rates[-1] > rates[0], "the rate followed"
    save_checkpoint(whole, tmp_path / "saved", {})
    resumed = RankTrainer(spec)
    load_checkpoint(resumed, tmp_path / "saved")
    for seed in range(5, 8):
        one = whole.step(make_groups(seed=seed), version=0)
        other = resumed.step(make_groups(seed=seed), version=0)
        for name in ("learning_rate", "kl_step", "update_share", "loss", "grad_norm"):
            assert one[name] == other[name], name
    assert whole.region == resumed.region
    assert torch.equal(weights(whole), weights(resumed))


@pytest.mark.parametrize("preset", ["ppo", "reinforce_plus_plus", "areal"])
def test_the_rate_does_not_rise_where_nearly_all_rewards_are_equal(
    spec: TrainerSpec, preset: str
) -> None:
    """A token that is not compared with siblings has an advantage in all groups."""
    trainer = RankTrainer(with_preset(changed(spec, learning_rate="auto"), preset))
    for seed in range(REMEMBERED):
        (odd, *others), *rest = [
            group.trajectories for group in make_groups(8, 2, seed=seed, same_reward=True)
        ]
        first = (replace(odd, reward=0.0), *others)
        groups = [
            TrajectoryGroup(f"g{number}", "task", of_group, "source")
            for number, of_group in enumerate((first, *rest))
        ]
        metrics = trainer.step(groups, version=0)
        assert metrics["num_idle_groups"] == 0.0
        assert metrics["spread"] == 1 / 8
    assert trainer.region.factor == 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_follows_under_a_schedule_that_lowers_it(spec: TrainerSpec, schedule: str) -> None:
    trainer = RankTrainer(changed(spec, learning_rate="auto", schedule=schedule))
    for seed in range(2 * REMEMBERED):
        trainer.step(make_groups(seed=seed), version=0)
    assert trainer.region.factor == pytest.approx(FACTOR ** (REMEMBERED + 1))


def test_a_rate_that_was_set_does_not_follow_what_a_checkpoint_has_followed(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    auto = changed(spec, learning_rate="auto")
    trainer = RankTrainer(auto)
    for seed in range(REMEMBERED):
        trainer.step(make_groups(seed=seed), version=0)
    latest = tmp_path / "0"
    save_checkpoint(trainer, latest, {})

    def rate_of_resumed(spec: TrainerSpec) -> float:
        nonlocal latest
        trainer = RankTrainer(spec)
        load_checkpoint(trainer, latest)
        rate = trainer.step(make_groups(), version=0)["learning_rate"]
        latest = latest.with_name(f"{latest.name}0")
        save_checkpoint(trainer, latest, {})
        return rate

    assert rate_of_resumed(changed(spec, learning_rate=1e-6)) == 1e-6
    assert rate_of_resumed(changed(spec, learning_rate=1e-6, trust_region=0.0)) == 1e-6
    assert rate_of_resumed(changed(auto, trust_region=0.0)) == FIRST_LEARNING_RATE
    rate = rate_of_resumed(auto)
    assert rate == pytest.approx(FACTOR * FIRST_LEARNING_RATE), "and the factor is kept"


def test_an_adapter_is_held_too(spec: TrainerSpec) -> None:
    lora = changed(spec, lora={"rank": 4}, learning_rate=0.5)
    trainer = RankTrainer(lora)
    for seed in range(2):  # the first update moves only one of the two matrices
        trainer.step(make_groups(seed=seed), version=0)
    metrics = trainer.step(make_groups(seed=2), version=0)
    assert metrics["kl_step"] <= CLOSE * PER_TOKEN
    assert metrics["update_share"] < 1.0


def played(length: int, *, group: str, reward: float) -> Trajectory:
    """An episode of `length` trained tokens."""
    rng = np.random.default_rng(length)
    mask = (False,) * 4 + (True,) * length
    return Trajectory(
        episode_id=f"{group}-{length}",
        task_id=group,
        tokens=(1, 2, 3, 4, *rng.integers(5, 250, length).tolist()),
        loss_mask=mask,
        logprobs=tuple(-5.0 * m for m in mask),
        versions=tuple(m - 1 for m in mask),
        temperatures=(1.0,) * len(mask),
        turn_of_token=tuple(m - 1 for m in mask),
        reward=reward,
    )


def test_long_and_short_episodes_are_held_together(spec: TrainerSpec) -> None:
    lengths = {"terse": (3, 5, 4, 6), "verbose": (200, 150, 180, 160)}
    groups = [
        TrajectoryGroup(
            name, name, tuple(played(n, group=name, reward=n % 2) for n in of), source=name
        )
        for name, of in lengths.items()
    ]
    trainer = RankTrainer(changed(spec, learning_rate=0.05))
    seen: set[int] = set()

    def note(_: object, arguments: tuple[Batch]) -> None:
        if not torch.is_grad_enabled():
            seen.update(arguments[0].groups_T.tolist())

    trainer.policy.register_forward_pre_hook(note)
    bound = 0.3 * 8 / (18 + 690)
    assert trainer.region.bound((18 + 690) / 8) == pytest.approx(bound)
    for version in range(4):
        metrics = trainer.step(groups, version=version)
        assert 0.0 < metrics["kl_step"] <= CLOSE * bound
        assert version or metrics["update_share"] < 0.5
    assert seen == {0, 1}, "both sources are measured"


def test_a_lone_sequence_is_measured_and_held(spec: TrainerSpec) -> None:
    """The sibling of the sequence said nothing."""
    siblings = (played(7, group="a", reward=1.0), played(0, group="a", reward=0.0))
    trainer = RankTrainer(changed(spec, learning_rate=0.05))
    metrics = trainer.step([TrajectoryGroup("a", "a", siblings)], version=0)
    assert metrics["num_updates"] == 1.0
    assert 0.0 < metrics["kl_step"] <= CLOSE * PER_TOKEN
    assert metrics["update_share"] < 1.0


def test_a_critic_takes_its_whole_step_where_the_policy_is_held(spec: TrainerSpec) -> None:
    spec = with_preset(changed(spec, learning_rate=0.05), "ppo")
    held, free = RankTrainer(spec), RankTrainer(changed(spec, trust_region=0.0))
    metrics = [trainer.step(make_groups(), version=0) for trainer in (held, free)]
    assert metrics[0]["update_share"] < 0.5
    assert metrics[1]["update_share"] == 1.0
    assert metrics[0]["value_grad_norm"] == metrics[1]["value_grad_norm"]
    assert held.critic is not None
    assert free.critic is not None
    for one, other in zip(
        held.critic.model.parameters(), free.critic.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_groups_that_teach_nothing_are_measured_too(spec: TrainerSpec) -> None:
    measured: set[int] = set()

    def note(_: object, arguments: tuple[Batch]) -> None:
        if not torch.is_grad_enabled():
            measured.update(arguments[0].groups_T.tolist())

    trainer = RankTrainer(spec)
    trainer.policy.register_forward_pre_hook(note)
    metrics = trainer.step(make_groups(1) + make_groups(1, seed=1, same_reward=True), version=0)
    assert metrics["num_idle_groups"] == 1
    assert measured == {0, 1}


def rewritten(checkpoint: Path, region: object) -> Path:
    """The checkpoint, with another state of the limit."""
    path = checkpoint / STATE_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "region": region}))
    (checkpoint / MANIFEST_FILE).unlink()
    write_manifest(checkpoint)
    return checkpoint


def test_a_checkpoint_that_keeps_the_limit_as_a_list_is_resumed(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    save_checkpoint(RankTrainer(spec), tmp_path / "saved", {})
    resumed = RankTrainer(spec)
    load_checkpoint(resumed, rewritten(tmp_path / "saved", [2.25, 1]))
    assert (resumed.region.factor, resumed.region.num_calm) == (2.25, 1)
    assert (resumed.region.tightness, resumed.region.noise) == (1.0, None)


@pytest.mark.parametrize("region", [[2.25], "2.25", [2.25, None], {"factor": "2.25"}, {"rate": 1}])
def test_a_checkpoint_with_a_limit_of_no_known_shape_is_refused(
    spec: TrainerSpec, tmp_path: Path, region: object
) -> None:
    save_checkpoint(RankTrainer(spec), tmp_path / "saved", {})
    checkpoint = rewritten(tmp_path / "saved", region)
    with pytest.raises(CheckpointError, match="init_from"):
        load_checkpoint(RankTrainer(spec), checkpoint)
