"""What a step records of its tokens is what it did with them, and recording changes nothing."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.config import RunSection
from areal_sdk.fsdp.group_wire import decode_tokens, encode_tokens
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer, trust_region
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.rollout.trajectory import mask_older
from areal_sdk.telemetry.token_log import StepTokens, TokenFlag
from areal_sdk.trainer import PresetSpec
from areal_sdk.trajectory import TrajectoryGroup

from .episodes import branching_groups, make_groups
from .specs import EVERYTHING, changed, trainer_spec, with_preset

WITH_REFERENCE = {"reinforce_plus_plus": {"kl": 0.05}, "grpo": {"kl": 0.1, "entropy": 0.01}}


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    return trainer_spec(
        model_dir, precision="float32", warmup_steps=0, learning_rate=1e-3, device="cpu"
    )


def two_ages() -> list[TrajectoryGroup]:
    """Groups far from the sampler, so that weights, clips and screens act."""
    return make_groups(2, seed=1, version=1) + make_groups(2, seed=2, version=0)


def recorded(trainer: RankTrainer, groups: Sequence[TrajectoryGroup]) -> StepTokens:
    trainer.step(groups, version=1)
    assert trainer.tokens is not None
    return trainer.tokens


def assert_same_parts(found: StepTokens, expected: StepTokens) -> None:
    """The same groups, sequences and minibatches. The share of an update is measured, so it is rounded."""
    parts, expected_parts = found.about(), expected.about()
    shares, expected_shares = (
        [minibatch.pop("share") for minibatch in about["minibatches"]]
        for about in (parts, expected_parts)
    )
    assert parts == expected_parts
    assert shares == pytest.approx(expected_shares, rel=1e-3)


def counted(groups: Sequence[TrajectoryGroup], name: str) -> np.ndarray:
    rows = [getattr(t, name)[t.loss_mask] for group in groups for t in group.trajectories]
    return np.concatenate(rows)


@pytest.mark.parametrize("preset", [*ALGORITHMS.values()])
def test_the_terms_add_up_to_the_loss_which_is_the_same_bit_for_bit_without_a_record(
    spec: TrainerSpec, preset: str
) -> None:
    spec = changed(with_preset(spec, preset, **WITH_REFERENCE.get(preset, {})), num_minibatches=2)
    silent = RankTrainer(replace(spec, run=RunSection(keep_tokens=0)))
    trainer = RankTrainer(spec)
    metrics, expected = trainer.step(two_ages(), version=1), silent.step(two_ages(), version=1)
    assert (metrics["loss"], metrics["grad_norm"]) == (expected["loss"], expected["grad_norm"])
    for ours, theirs in zip(trainer.policy.parameters(), silent.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert silent.tokens is None
    tokens = trainer.tokens
    assert tokens is not None
    assert _sum_of_terms(tokens) == pytest.approx(metrics["loss"], rel=1e-5, abs=1e-7)
    flags = tokens.columns["flags"]
    assert (flags & TokenFlag.TERM > 0).sum() == metrics["num_trained"]
    clipped = flags & (TokenFlag.CLIPPED_LOW | TokenFlag.CLIPPED_HIGH) > 0
    assert clipped.sum() / metrics["num_trained"] == pytest.approx(metrics["clip_fraction"])
    entropies = tokens.columns["entropy"]
    assert np.nanmean(entropies) == pytest.approx(metrics["entropy"], rel=1e-5)


def _sum_of_terms(tokens: StepTokens) -> float:
    """The loss of a step, from what is recorded of its terms."""
    total = 0.0
    for sequence, (start, stop) in zip(tokens.sequences, _ends(tokens), strict=True):
        minibatch = tokens.groups[sequence.group].minibatch
        assert minibatch is not None
        terms = np.nansum(tokens.columns["loss"][start:stop].astype(np.float64))
        total += sequence.weight * terms / tokens.minibatches[minibatch].divisor
    return float(total / len(tokens.minibatches))


def test_every_value_stands_at_its_own_token(spec: TrainerSpec) -> None:
    """However the rows are cut and packed: an episode, a turn and a place name the token."""
    groups = two_ages() + branching_groups()
    whole = recorded(RankTrainer(spec), groups)
    cut = changed(spec, tokens_per_microbatch=40, share_prompts=False)
    again = recorded(RankTrainer(cut), groups)
    assert_same_parts(again, whole)
    for name, column in whole.columns.items():
        assert again.columns[name] == pytest.approx(column, rel=1e-4, abs=1e-5, nan_ok=True), name
    assert whole.columns["advantage"].shape == counted(groups, "tokens").shape
    places = [
        (t.episode_id, int(t.turn_of_token[at]), int(at) + t.branch.num_before)
        for group in groups
        for t in group.trajectories
        for at in np.flatnonzero(t.loss_mask)
    ]
    told = [
        (sequence.episode_id, turn, place + number)
        for sequence in whole.sequences
        for turn, place, count in sequence.runs
        for number in range(count)
    ]
    assert told == places


def test_a_step_without_a_gradient_is_recorded_too(spec: TrainerSpec) -> None:
    tokens = recorded(RankTrainer(spec), make_groups(same_reward=True))
    assert tokens.minibatches == ()
    assert {group.minibatch for group in tokens.groups} == {None}
    assert set(tokens.columns["flags"].tolist()) == {int(TokenFlag.COUNTED)}
    assert not tokens.columns["advantage"].any()


def test_a_token_without_an_advantage_has_no_term(spec: TrainerSpec) -> None:
    groups = make_groups(1) + make_groups(1, seed=1, same_reward=True)
    tokens = recorded(RankTrainer(spec), groups)
    half = tokens.num_tokens // 2
    assert (tokens.columns["flags"][:half] & TokenFlag.TERM).all()
    assert not (tokens.columns["flags"][half:] & TokenFlag.TERM).any()
    assert np.isnan(tokens.columns["entropy"][half:]).all()
    assert tokens.groups[1].minibatch == 0, "its tokens count in the divisor"
    assert tokens.minibatches[0].divisor == tokens.num_tokens


def test_masked_tokens_and_silent_siblings_are_told_apart_from_trained_ones(
    spec: TrainerSpec,
) -> None:
    [group] = make_groups(1, size=3)
    first, second, third = group.trajectories
    aged = replace(first, versions=np.where(first.turn_of_token == 1, 1, 0))
    old = mask_older(aged, than=1)
    silent = replace(third, loss_mask=np.zeros_like(third.loss_mask))
    tokens = recorded(RankTrainer(spec), [replace(group, trajectories=(old, second, silent))])
    kept, whole, none = tokens.sequences
    assert [turn for turn, *_ in kept.runs] == [1]
    assert [turn for turn, *_ in whole.runs] == [0, 1]
    assert none.runs == ()
    assert none.reward == third.reward
    assert tokens.num_tokens == old.num_trained + second.num_trained


def test_a_lone_survivor_has_no_advantage(spec: TrainerSpec) -> None:
    [group] = make_groups(1, size=1)
    tokens = recorded(RankTrainer(spec), [group])
    assert tokens.columns["advantage"].tolist() == [0.0] * tokens.num_tokens


def test_an_update_that_was_left_out_is_marked(spec: TrainerSpec) -> None:
    trainer = RankTrainer(spec)
    with torch.no_grad():
        next(trainer.policy.parameters()).fill_(math.nan)
    tokens = recorded(trainer, make_groups(1))
    assert [m.is_applied for m in tokens.minibatches] == [False]
    assert np.isnan(tokens.columns["loss"]).all()


def test_the_part_of_an_update_that_is_left_is_recorded(
    spec: TrainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = changed(spec, learning_rate=1e-1, trust_region=1e-3)
    trainer = RankTrainer(far)
    metrics = trainer.step(make_groups(1), version=1)
    assert trainer.tokens is not None
    [held] = trainer.tokens.minibatches
    assert held.share == metrics["update_share"] < 1.0
    monkeypatch.setattr(trust_region, "TRIES", 0)
    [taken_back] = recorded(RankTrainer(far), make_groups(1)).minibatches
    assert (taken_back.is_applied, taken_back.share) == (True, 0.0)
    free = RankTrainer(changed(spec, learning_rate=1e-1, trust_region=0.0))
    assert [m.share for m in recorded(free, make_groups(1)).minibatches] == [1.0]


def test_the_later_minibatch_has_a_centre_of_its_own(spec: TrainerSpec) -> None:
    trainer = RankTrainer(changed(spec, num_minibatches=2, learning_rate=1e-2, trust_region=0.0))
    tokens = recorded(trainer, two_ages())
    moved = tokens.columns["train_minus_proximal"]
    later = [
        (start, stop)
        for sequence, (start, stop) in zip(tokens.sequences, _ends(tokens), strict=True)
        if tokens.groups[sequence.group].minibatch == 1
    ]
    in_later = np.zeros(tokens.num_tokens, bool)
    for start, stop in later:
        in_later[start:stop] = True
    assert not moved[~in_later].any()
    assert moved[in_later].all()


def _ends(tokens: StepTokens) -> list[tuple[int, int]]:
    ends = np.cumsum([0, *(sequence.num_tokens for sequence in tokens.sequences)]).tolist()
    return [*pairwise(ends)]


def test_what_travels_is_what_a_file_holds(spec: TrainerSpec) -> None:
    tokens = recorded(RankTrainer(replace(spec, preset=PresetSpec(EVERYTHING))), two_ages())
    payload, buffers = encode_tokens(tokens)
    found = decode_tokens(payload, [np.asarray(buffer).tobytes() for buffer in buffers])
    assert found is not None
    assert found.about() == tokens.about()
    assert encode_tokens(found)[0] == payload, "it can travel on"
    assert {"value", "target", "train_minus_reference"} <= found.columns.keys()
    for name, column in tokens.columns.items():
        assert found.columns[name] == pytest.approx(column, rel=2**-11, abs=1e-7, nan_ok=True), name


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"ranks": 2}, {"ranks": 2, "sequence_ranks": 2}], ids=str)
async def test_several_ranks_record_what_one_rank_does(
    spec: TrainerSpec, tmp_path: Path, settings: dict[str, int]
) -> None:
    spec = replace(
        changed(spec, num_minibatches=2, tokens_per_microbatch=128), preset=PresetSpec(EVERYTHING)
    )
    groups = two_ages() + branching_groups()[:1]
    alone = recorded(RankTrainer(spec), groups)
    client = FSDPTrainer(changed(spec, **settings), log_dir=tmp_path / "logs")
    await client.start()
    try:
        await client.step(groups, version=1, timeout_s=120)
        together = client.tokens
    finally:
        await client.aclose()
    assert together is not None
    assert_same_parts(together, alone)
    for name, column in alone.columns.items():
        assert together.columns[name] == pytest.approx(column, rel=2e-3, abs=1e-4, nan_ok=True), (
            name
        )
