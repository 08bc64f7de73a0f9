"""One step, against plain transformers and against itself cut differently."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from areal_sdk.algorithms.advantages.running import NAMES_FROM
from areal_sdk.algorithms.objectives import Loss, PolicyTerms
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.step.notices import Distances
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import TrajectoryGroup
from tests.fsdp.gradients import GradientTrainer, reference_gradient

from .episodes import make_groups
from .specs import changed, trainer_spec, with_preset


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    return trainer_spec(model_dir, precision="float32", warmup_steps=0, learning_rate=1e-3)


def weights(trainer: RankTrainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.policy.named_weights().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("share_prompts", [True, False])
@pytest.mark.parametrize("tokens_per_microbatch", [8192, 60])
def test_gradients_equal_the_unshared_unpacked_reference(
    spec: TrainerSpec, share_prompts: bool, tokens_per_microbatch: int
) -> None:
    groups = make_groups()
    trainer = GradientTrainer(
        changed(
            spec,
            share_prompts=share_prompts,
            tokens_per_microbatch=tokens_per_microbatch,
            max_grad_norm=math.inf,
        )
    )
    metrics = trainer.step(groups, version=0)
    loss, gradient = reference_gradient(spec.model_dir, groups)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-7)
    for name, expected in gradient.items():
        error = (trainer.gradient[name] - expected).norm() / expected.norm()
        assert error < 1e-5, name


def test_sharing_computes_fewer_tokens(spec: TrainerSpec) -> None:
    groups = make_groups()
    shared = RankTrainer(spec).step(groups, version=0)["num_computed"]
    alone = RankTrainer(changed(spec, share_prompts=False)).step(groups, version=0)["num_computed"]
    assert shared < 0.6 * alone


def test_zero_variance_groups_are_counted_but_not_computed(spec: TrainerSpec) -> None:
    useful = make_groups(1)
    solved = make_groups(1, seed=1, same_reward=True)
    alone, both = GradientTrainer(spec), GradientTrainer(spec)
    without = alone.step(useful, version=0)
    metrics = both.step(useful + solved, version=0)
    assert metrics["num_computed"] == without["num_computed"]
    assert metrics["num_trained"] == without["num_trained"]
    assert metrics["num_counted"] == 2 * without["num_counted"]
    assert metrics["num_idle_groups"] == 1
    # Twice the tokens, half the gradient.
    assert metrics["grad_norm"] == pytest.approx(without["grad_norm"] / 2, rel=1e-5)


def test_nothing_to_train_changes_nothing_and_says_so(spec: TrainerSpec) -> None:
    trainer = RankTrainer(spec)
    before = weights(trainer)
    metrics = trainer.step(make_groups(same_reward=True), version=0)
    assert metrics["num_trained"] == 0
    assert "loss" not in metrics
    assert trainer.num_updates == 0
    assert same(weights(trainer), before)


def test_a_batch_that_teaches_nothing_is_no_update_where_all_tokens_are_computed(
    spec: TrainerSpec,
) -> None:
    """A screen looks at every token: with no gradient, the optimiser's momentum must not move on."""
    trainer = RankTrainer(with_preset(spec, "m2po"))
    assert trainer.step(make_groups(), version=0)["num_updates"] == 1
    before = weights(trainer)
    metrics = trainer.step(make_groups(same_reward=True), version=0)
    assert metrics["num_updates"] == 0
    assert metrics["num_skipped_updates"] == 0
    assert trainer.num_updates == 1
    assert same(weights(trainer), before)


def test_an_empty_completion_counts_in_the_baseline_and_trains_nothing(
    spec: TrainerSpec,
) -> None:
    [group] = make_groups(1, size=2)
    silent = replace(
        group.trajectories[1], loss_mask=np.zeros_like(group.trajectories[1].loss_mask)
    )
    metrics = RankTrainer(spec).step(
        [replace(group, trajectories=(group.trajectories[0], silent))], version=0
    )
    assert metrics["num_trained"] == group.trajectories[0].num_trained
    assert metrics["num_updates"] == 1


def test_a_gradient_that_is_not_finite_is_dropped_and_reported(spec: TrainerSpec) -> None:
    trainer = RankTrainer(spec)
    before = weights(trainer)
    [group] = make_groups(1)
    poisoned = replace(
        group.trajectories[0],
        logprobs=np.where(group.trajectories[0].loss_mask, np.float32(math.nan), np.float32(0.0)),
    )
    broken = replace(group, trajectories=(poisoned, *group.trajectories[1:]))
    metrics = trainer.step([broken], version=0)
    assert metrics["num_skipped_updates"] == 1
    assert metrics["num_updates"] == 0
    assert not math.isfinite(metrics["grad_norm"])
    assert same(weights(trainer), before)
    assert trainer.step([group], version=0)["num_updates"] == 1


def test_a_step_makes_good_tokens_likelier_and_bad_ones_less(spec: TrainerSpec) -> None:
    groups = make_groups(2)
    trainer = RankTrainer(spec)
    losses = [trainer.step(groups, version=0)["loss"] for _ in range(4)]
    assert losses == sorted(losses, reverse=True)


def test_the_learning_rate_warms_up(spec: TrainerSpec) -> None:
    trainer = RankTrainer(changed(spec, warmup_steps=4, trust_region=0.0))
    rates = [trainer.step(make_groups(1), version=0)["learning_rate"] for _ in range(5)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3])


def test_gradients_are_clipped_by_their_global_norm(spec: TrainerSpec) -> None:
    # AdamW's first step has the size of the learning rate whatever the gradient's: look at moments.
    trainer = RankTrainer(changed(spec, max_grad_norm=1e-3))
    metrics = trainer.step(make_groups(), version=0)
    assert metrics["grad_norm"] > 1e-2
    moments = [state["exp_avg"] for state in trainer.optimizer.state.values()]
    norm = torch.stack([m.norm() for m in moments]).norm().item()
    assert norm == pytest.approx((1 - spec.trainer.beta1) * 1e-3, rel=1e-3)


def test_staleness_is_reported_and_the_future_is_refused(spec: TrainerSpec) -> None:
    trainer = RankTrainer(spec)
    metrics = trainer.step(make_groups(1, version=3) + make_groups(1, version=5), version=5)
    assert metrics["staleness_max"] == 2
    assert metrics["staleness_mean"] == 1
    with pytest.raises(ValueError, match="version 7 in a step that starts from 5"):
        trainer.step(make_groups(1, version=7), version=5)


def test_each_minibatch_is_an_update_of_its_own(spec: TrainerSpec) -> None:
    trainer = RankTrainer(changed(spec, num_minibatches=3))
    metrics = trainer.step(make_groups(3), version=0)
    assert metrics["num_updates"] == 3
    assert trainer.num_updates == 3
    # Later minibatches find a policy that has moved on from p.
    assert metrics["ratio_max"] != 1.0


def test_with_one_minibatch_nothing_is_ever_clipped(spec: TrainerSpec) -> None:
    metrics = RankTrainer(spec).step(make_groups(3), version=0)
    assert metrics["ratio_max"] == 1.0
    assert metrics["clip_fraction"] == 0.0
    assert 4.0 < metrics["entropy"] < math.log(263)  # a random model is nearly uniform


def terms_of(
    trainer: RankTrainer, groups: list[TrajectoryGroup], *, version: int
) -> list[PolicyTerms]:
    """The loss terms of each minibatch of a step."""
    seen: list[PolicyTerms] = []
    objective = trainer.algorithm.objective

    def keep(terms: PolicyTerms) -> Loss:
        seen.append(terms)
        return objective(terms)

    trainer.algorithm = replace(trainer.algorithm, objective=keep)
    trainer.step(groups, version=version)
    trainer.algorithm = replace(trainer.algorithm, objective=objective)
    return seen


def test_the_recomputed_proximal_policy_is_that_of_the_start_of_the_step(
    spec: TrainerSpec,
) -> None:
    groups = make_groups(2)
    first, second = terms_of(RankTrainer(changed(spec, num_minibatches=2)), groups, version=0)
    assert torch.equal(first.proximal_T, first.current_T.detach())
    assert not torch.equal(second.proximal_T, second.current_T.detach())
    # The second group alone, from the same weights: its q is the p it should have had.
    [alone] = terms_of(RankTrainer(spec), [groups[1]], version=0)
    torch.testing.assert_close(second.proximal_T, alone.current_T.detach())


def test_interpolation_is_closer_to_the_proximal_policy_than_sampler_and_current_are(
    spec: TrainerSpec,
) -> None:
    """Sampled one real update before the step, and measured against recomputing."""
    spec = changed(spec, num_minibatches=2, learning_rate=3e-4)
    groups = relabel(spec.model_dir, make_groups(2, seed=6))
    exact, guess = RankTrainer(spec), RankTrainer(with_preset(spec, "grpo", proximal="interpolate"))
    for trainer in (exact, guess):
        trainer.step(groups, version=0)
    truth = terms_of(exact, groups, version=1)[1]
    interpolated = terms_of(guess, groups, version=1)[1].proximal_T

    def error(p_hat: torch.Tensor) -> float:
        return (p_hat - truth.proximal_T).abs().mean().item()

    assert error(interpolated) < 0.5 * error(truth.behaviour_T)
    assert error(interpolated) < 0.5 * error(truth.current_T.detach())


def relabel(model_dir: Path, groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups as if the model in `model_dir` had sampled them."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    relabelled = []
    for group in groups:
        members = []
        for t in group.trajectories:
            tokens = torch.tensor(t.tokens)
            with torch.no_grad():
                logits = model(tokens[None]).logits[0, :-1]
            logits = logits / torch.tensor(t.temperatures)[1:, None]
            logprobs = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0].tolist()
            members.append(
                replace(
                    t,
                    logprobs=np.where(t.loss_mask, [0.0, *logprobs], 0.0),
                )
            )
        relabelled.append(replace(group, trajectories=tuple(members)))
    return relabelled


def test_imitation_learns_its_demonstrations(spec: TrainerSpec) -> None:
    trainer = RankTrainer(spec)
    rows = [Demonstration((1, 2, 3, 4, 5), (False, False, True, True, True))] * 4
    losses = [trainer.learn(rows, learning_rate=3e-3)["loss"] for _ in range(15)]
    assert losses[0] == pytest.approx(math.log(263), rel=0.1)  # mean over tokens, about uniform
    assert losses[-1] < 0.5 * losses[0]


def test_the_optimizer_forgets_imitation_when_reinforcement_begins(
    spec: TrainerSpec,
) -> None:
    trainer = RankTrainer(changed(spec, warmup_steps=2))
    trainer.learn([Demonstration((1, 2, 3), (False, True, True))], learning_rate=1e-3)
    metrics = trainer.step(make_groups(1), version=0)
    assert metrics["learning_rate"] == spec.trainer.first_learning_rate / 2
    assert {float(state["step"]) for state in trainer.optimizer.state.values()} == {1.0}


def test_bfloat16_stays_close_to_float32(spec: TrainerSpec) -> None:
    groups = make_groups()
    exact, rough = GradientTrainer(spec), GradientTrainer(changed(spec, precision="bfloat16"))
    loss, rough_loss = (t.step(groups, version=0)["loss"] for t in (exact, rough))
    assert rough_loss == pytest.approx(loss, abs=2e-3)
    flat, rough_flat = (
        torch.cat([g.flatten() for g in t.gradient.values()]) for t in (exact, rough)
    )
    assert torch.cosine_similarity(flat, rough_flat, dim=0) > 0.99
    assert all(p.dtype is torch.float32 for p in rough.policy.parameters())


def test_who_posted_a_wrong_reward_is_named_once(model_dir: Path) -> None:
    trainer = RankTrainer(
        with_preset(trainer_spec(model_dir, precision="float32"), "running_baseline")
    )
    usual, wrong = make_groups(2, seed=1), make_groups(2, seed=2)
    first, *others = wrong[1].trajectories
    wrong[1] = replace(wrong[1], trajectories=(replace(first, reward=1e6), *others))
    while len(trainer.baselines.get("task-1", ())) < NAMES_FROM:
        assert trainer.step(usual, version=1)["num_outlying_sources"] == 0.0
    assert trainer.notices == []
    assert trainer.step(wrong, version=1)["num_outlying_sources"] == 1.0
    (notice,) = trainer.notices
    assert notice.startswith("task-1: a reward of 1e+06 is far from the 0.")
    assert "algorithm.running_baseline.max_surprise" in notice
    assert trainer.step(wrong, version=1)["num_outlying_sources"] == 1.0
    assert trainer.notices == []


def test_a_disagreement_on_the_same_weights_is_named_once_with_the_cure(spec: TrainerSpec) -> None:
    spec = replace(spec, publish_dtype="float32")
    agreeing, wrong = relabel(spec.model_dir, make_groups(2)), make_groups(2)
    trainer = RankTrainer(changed(spec, learning_rate=1e-12))
    metrics = trainer.step(agreeing, version=0)
    assert metrics["dlogp_lag_0"] < 1e-5
    assert trainer.notices == []
    assert trainer.step(wrong, version=0)["dlogp_lag_0"] > 0.1
    (notice,) = trainer.notices
    assert "generation and training disagree" in notice
    assert "areal-sdk doctor model" in notice
    trainer.step(wrong, version=0)
    assert trainer.notices == []
    assert "dlogp_lag_0" not in trainer.step(wrong, version=1), "older samples may differ"


def test_a_policy_that_runs_away_from_its_samples_is_named_once_with_the_cure(
    spec: TrainerSpec,
) -> None:
    spec = replace(spec, publish_dtype="float32")
    groups = relabel(spec.model_dir, make_groups(4))
    trainer = RankTrainer(changed(spec, learning_rate=0.3, trust_region=0.0, num_minibatches=4))
    told = []
    for version in range(4):
        trainer.step(groups, version=version)
        told += trainer.notices
    (notice,) = told
    assert "nats a token away from the one that sampled" in notice
    assert "lower trainer.learning_rate" in notice


def test_a_jump_of_the_distance_is_named_where_its_mean_over_tokens_is_small() -> None:
    distances = Distances()
    usual = [1e-6, 2e-3, 1e-3, 2.5e-3, 1e-3, 3e-3]
    assert [distances.notice({"kl_behaviour_after": value}) for value in usual] == [None] * 6
    assert distances.notice({}) is None
    notice = distances.notice({"kl_behaviour_after": 0.069})
    assert notice is not None
    assert "(the median before: 0.0015)" in notice
    assert Distances().notice({"kl_behaviour_after": 0.069}) is None, "nothing is usual yet"


@pytest.mark.parametrize(("found", "is_named"), [(0.033, False), (0.071, False), (0.44, True)])
def test_a_rate_that_rises_within_the_trust_region_is_no_jump(found: float, is_named: bool) -> None:
    """The rate begins low and rises, so what was usual says little: 11 of 11 sound runs were told of a jump."""
    distances = Distances(is_bounded=True)
    usual = {"staleness_max": 2.0, "num_updates": 1.0}
    for _ in range(10):
        assert distances.notice({**usual, "kl_behaviour_after": 8.9e-5}) is None
    assert (distances.notice({**usual, "kl_behaviour_after": found}) is not None) is is_named


@pytest.mark.parametrize("num_minibatches", [1, 3])
def test_on_fresh_samples_decoupled_ppo_is_plain_ppo(
    spec: TrainerSpec, num_minibatches: int
) -> None:
    spec = changed(spec, num_minibatches=num_minibatches, learning_rate=3e-4)
    fresh, stale = relabel(spec.model_dir, make_groups(3)), make_groups(3)

    def compare(groups: list[TrajectoryGroup]) -> tuple[dict[str, float], dict[str, float]]:
        decoupled, plain = RankTrainer(spec), RankTrainer(with_preset(spec, "naive_ppo"))
        return decoupled.step(groups, version=0), plain.step(groups, version=0)

    one, other = compare(fresh)
    for name in ("loss", "grad_norm", "clip_fraction"):
        assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-7), name
    one, other = compare(stale)
    assert abs(one["loss"] - other["loss"]) > 0.01, "p is not b: the two differ"
