"""The bound on an update, taking part of an update back, and the rate that follows the bound."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.examples import Example
from areal_sdk.fsdp.checkpoint import load_checkpoint, save_checkpoint
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.step.trust_region import (
    CLOSE,
    FACTOR,
    NUM_TERMS,
    PER_TOKEN,
    REMEMBERED,
    Moved,
    Update,
    UpdateLimit,
    sampled,
)
from areal_sdk.trajectory import Branch

from .episodes import make_groups
from .specs import changed, trainer_spec, with_preset

CALM = Moved(kl=1e-6, kl_behaviour=0.0, share=1.0, filled=0.01)
HELD = Moved(kl=0.02, kl_behaviour=0.0, share=0.5, filled=1.0)
FULL = Moved(kl=0.01, kl_behaviour=0.0, share=1.0, filled=0.9)


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


def held(kl_of_share: dict[str, float], *, bound: float, power: float) -> tuple[Moved, float, int]:
    """A full update of KL `whole` that falls with `power`; the number of measurements too."""
    now, count = 1.0, 0

    class OnPaper:
        def scale(self, share: float, to: float) -> None:
            nonlocal now
            assert share == pytest.approx(now)
            now = to

    def measure() -> tuple[float, float]:
        nonlocal count
        count += 1
        return kl_of_share["whole"] * now**power, 0.0

    moved = UpdateLimit(0.3, is_followed=True).hold(OnPaper(), measure, bound=bound)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("step", [0.05, 0.3, 0.9])
def test_an_update_that_rounds_to_nothing_when_it_is_scaled_is_held(step: float) -> None:
    """In bfloat16 a small part of an update changes no logprob, and a larger part too much."""
    now = 1.0

    class Rounded:
        def scale(self, share: float, to: float) -> None:
            nonlocal now
            now = to

    def measure() -> tuple[float, float]:
        return (30.0 if now > step else 0.0), 0.0

    limit = UpdateLimit(0.3, is_followed=True)
    moved = limit.hold(Rounded(), measure, bound=1.0)  # type: ignore[arg-type]
    assert moved.kl == 0.0
    assert moved.share == pytest.approx(now)
    assert moved.share <= step


def test_an_update_that_broke_the_policy_is_taken_back_as_a_whole() -> None:
    moved, now, _ = held({"whole": math.nan}, bound=1.0, power=1.0)
    assert (moved.share, now) == (0.0, 0.0)


def test_the_bound_is_of_an_episode_and_of_a_token() -> None:
    region = UpdateLimit(0.3, is_followed=True)
    assert region.bound(3.0) == PER_TOKEN
    assert region.bound(1000.0) == pytest.approx(3e-4)
    assert UpdateLimit(0.0, is_followed=True).bound(3.0) == math.inf


# the rate


def test_the_rate_rises_only_after_calm_steps_with_a_spread_of_rewards() -> None:
    region = UpdateLimit(0.3, is_followed=True)
    for _ in range(REMEMBERED - 1):
        region.follow([CALM], spread=1.0, is_full=True)
        assert region.factor == 1.0
    region.follow([CALM], spread=0.1, is_full=True)
    assert region.factor == 1.0, "few groups differ: more noise than gradient"
    region.follow([CALM], spread=1.0, is_full=False)
    assert region.factor == 1.0, "a warm-up or a schedule keeps the rate low"
    region.follow([CALM], spread=1.0, is_full=True)
    assert region.factor == FACTOR
    region.follow([CALM, FULL], spread=1.0, is_full=True)
    region.follow([CALM], spread=1.0, is_full=True)
    assert region.factor == FACTOR, "one full update, and the steps are counted anew"


def test_the_rate_falls_with_each_step_that_is_held_and_nothing_else_moves_it() -> None:
    region = UpdateLimit(0.3, is_followed=True)
    region.follow([FULL, HELD], spread=0.0, is_full=False)
    assert region.factor == pytest.approx(1 / FACTOR)
    region.follow([], spread=1.0, is_full=True)
    assert region.factor == pytest.approx(1 / FACTOR)
    fixed = UpdateLimit(0.3, is_followed=False)
    fixed.follow([HELD], spread=1.0, is_full=True)
    assert fixed.factor == 1.0


# the sample


def example(group: int, tokens: list[int]) -> Example:
    zeros = np.zeros(len(tokens) - 1, np.float32)
    places = np.arange(1, len(tokens))
    return Example(
        Branch(tokens), places, zeros, zeros, places * 0, zeros + 1, zeros.astype(bool), group
    )


def test_a_sample_is_all_of_a_small_minibatch_and_a_part_of_a_large_one() -> None:
    rng = np.random.default_rng(0)
    few = [example(g, rng.integers(0, 99, 5).tolist()) for g in range(3) for _ in range(4)]
    assert sampled(few, seed=0) == list(range(len(few)))
    many = [example(g, rng.integers(0, 99, 65).tolist()) for g in range(100) for _ in range(8)]
    chosen = sampled(many, seed=0)
    assert sum(len(many[i].targets_T) for i in chosen) >= NUM_TERMS
    assert len(chosen) == 50, "a sixteenth"
    assert len({many[i].group for i in chosen}) == 25, "two of a group"
    assert sampled(many, seed=1) != chosen


def test_the_order_of_the_sequences_does_not_change_the_sample() -> None:
    rng = np.random.default_rng(1)
    many = [example(g, rng.integers(0, 99, 33).tolist()) for g in range(20) for _ in range(4)]
    chosen = [many[i] for i in sampled(many, seed=3)]
    turned = many[::-1]
    assert {id(e) for e in chosen} == {id(turned[i]) for i in sampled(turned, seed=3)}


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


def test_the_kl_of_a_step_is_about_that_of_the_whole_vocabulary(spec: TrainerSpec) -> None:
    groups = make_groups(8, 8)
    trainer = RankTrainer(changed(spec, trust_region=0.0))
    metrics = trainer.step(groups, version=0)
    old = AutoModelForCausalLM.from_pretrained(spec.model_dir, dtype=torch.float32)
    new = AutoModelForCausalLM.from_pretrained(spec.model_dir, dtype=torch.float32)
    new.load_state_dict(dict(trainer.policy.named_weights()), strict=False)
    exact = []
    for trajectory in (t for group in groups for t in group.trajectories):
        tokens, mask = torch.tensor(trajectory.tokens), torch.tensor(trajectory.loss_mask)
        with torch.no_grad():
            p, q = (model(tokens[None]).logits[0].log_softmax(-1) for model in (old, new))
        exact += (p.exp() * (p - q)).sum(-1)[:-1][mask[1:]].tolist()
    # The gradient pushed the very tokens that are measured, and they are few: the estimate is the larger one.
    assert 1.0 < metrics["kl_step"] / (sum(exact) / len(exact)) < 4.0


@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_a_resumed_trainer_goes_on_with_the_rate_that_it_had(
    spec: TrainerSpec, tmp_path: Path, preset: str
) -> None:
    spec = with_preset(changed(spec, learning_rate="auto"), preset)
    whole = RankTrainer(spec)
    rates = [whole.step(make_groups(seed=s), version=0)["learning_rate"] for s in range(5)]
    assert rates[-1] > rates[0], "the rate followed"
    save_checkpoint(whole, tmp_path / "saved", {})
    resumed = RankTrainer(spec)
    load_checkpoint(resumed, tmp_path / "saved")
    for seed in range(5, 8):
        one = whole.step(make_groups(seed=seed), version=0)
        other = resumed.step(make_groups(seed=seed), version=0)
        assert one["learning_rate"] == other["learning_rate"]
        assert one["kl_step"] == other["kl_step"]
    assert torch.equal(weights(whole), weights(resumed))


def test_an_adapter_is_held_too(spec: TrainerSpec) -> None:
    lora = changed(spec, lora={"rank": 4}, learning_rate=0.5)
    trainer = RankTrainer(lora)
    for seed in range(2):  # the first update moves only one of the two matrices
        trainer.step(make_groups(seed=seed), version=0)
    metrics = trainer.step(make_groups(seed=2), version=0)
    assert metrics["kl_step"] <= CLOSE * PER_TOKEN
    assert metrics["update_share"] < 1.0


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
