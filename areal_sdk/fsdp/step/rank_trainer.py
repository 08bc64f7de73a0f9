"""The trainer of one rank: policy, optimiser and algorithm, and the order of what a step does."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from areal_sdk.algorithms.advantages import (
    Baselines,
    Evidence,
    NamesOutliers,
    PerToken,
    credit_of_episodes,
)
from areal_sdk.algorithms.algorithm import make_algorithm
from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.examples import Example, make_demonstration
from areal_sdk.algorithms.objectives import (
    Loss,
    Proximal,
    Screens,
    imitation,
    interpolate,
    masked,
)
from areal_sdk.fsdp.adapter import WithoutAdapter, dropout
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.loading import as_it_is, load_trained
from areal_sdk.fsdp.policy import Policy
from areal_sdk.fsdp.reward_model import RewardModel, judged
from areal_sdk.fsdp.sharding import frozen_ends_kept_whole, summed_at_the_end
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step.critic import CriticTrainer
from areal_sdk.fsdp.step.metrics import Meter, describe, disagreement
from areal_sdk.fsdp.step.notices import Notices
from areal_sdk.fsdp.step.optimizer import (
    Applied,
    apply_gradients,
    make_optimizer,
    moves_of,
    scheduled,
    warmed_up,
    worst,
)
from areal_sdk.fsdp.step.planning import Minibatch, Planner, gather, sampled_examples
from areal_sdk.fsdp.step.probe import Movement, Probe
from areal_sdk.fsdp.step.recording import StepRecord
from areal_sdk.fsdp.step.scoring import score, sequence_scores
from areal_sdk.fsdp.step.trust_region import UpdateLimit, summary
from areal_sdk.process.user_code import load_user_object
from areal_sdk.telemetry.token_log import StepTokens
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import Credit, TrajectoryGroup

LossOf = Callable[[Tensor, Tensor, Minibatch, Batch, float], Loss]
"""The loss of (logprobs, entropies, minibatch, batch, fraction of the step's minibatches done)."""


class RankTrainer:
    """Policy, optimiser and objective of one rank, and a reference and a critic if they are needed."""

    def __init__(self, spec: TrainerSpec, ranks: Ranks | None = None) -> None:
        self.spec = spec
        self.settings = spec.trainer
        self.ranks = ranks or Ranks()
        self.algorithm = make_algorithm(
            spec.preset.name, load_user_object(spec.preset.reference), spec.preset.options
        )
        self.needs = self.algorithm.needs
        self.policy: Policy | RewardModel = (
            load_trained(spec, self.ranks, RewardModel)
            if spec.learns_rewards
            else load_trained(spec, self.ranks, as_it_is)
        )
        self.optimizer = make_optimizer(self.policy, self.settings)
        self.reference = self._load_reference() if self.needs.reference else None
        self.critic: CriticTrainer | None = None
        if self.algorithm.critic is not None:
            self.critic = CriticTrainer(self.algorithm.critic, spec, self.ranks, self._autocast)
        self.phase = ""
        """`policy` or `imitation`. The state of the optimiser ends with its phase."""
        self.num_updates = 0
        """Optimiser updates of this phase."""
        self.num_steps = 0
        """Steps of this phase, those without an update too: the clock of warm-up and schedule."""
        self.region = UpdateLimit(
            self.settings.trust_region,
            may_rise=self.settings.learning_rate == "auto",
            first_rate=self.settings.first_learning_rate,
            rounds=self.settings.precision != "float32",
        )
        self.baselines: Baselines = {}
        self.credit: dict[str, Credit] = {}
        """Credit of the episodes of the latest step, by id."""
        self.tokens: StepTokens | None = None
        """The record of the latest step's tokens, on rank 0, if it is kept."""
        self._record: StepRecord | None = None
        self._notices = Notices(self.settings, spec.publish_dtype)
        self._planner = Planner(self.settings, self.ranks.rows)

    @property
    def notices(self) -> list[str]:
        """The notices of the latest step."""
        return self._notices.latest

    def _load_reference(self) -> Policy | WithoutAdapter:
        """The checkpoint that the run began with, which a resume does not change. It is never trained."""
        if self.settings.lora.rank:
            return WithoutAdapter(self.policy)
        return load_trained(self.spec, self.ranks, as_it_is).requires_grad_(False)

    def step(self, groups: Sequence[TrajectoryGroup], *, version: int) -> dict[str, float]:
        """Train on `groups`, sampled by policies up to `version`. Returns the metrics. If there is nothing to train,
        `num_trained` is 0, and neither weights nor optimiser change.
        """
        meter = Meter()
        metrics = describe(groups, version=version)
        if self.algorithm.shaping is not None:
            groups = self.algorithm.shaping(groups)
        evidence = self._evidence(groups, meter, version=version)
        with meter.phase("plan"):
            outliers = self._find_outliers(groups)
            estimate = self.algorithm.advantages(groups, evidence)
            self.baselines = estimate.baselines
            self.credit = credit_of_episodes(groups, estimate.advantages)
            plan = self._planner.plan(groups, self.algorithm, estimate, evidence, version=version)
            if self.spec.run.keep_tokens:
                self._record = StepRecord(groups, estimate.advantages, version, self.ranks.rows)
        counted = metrics["num_counted"]
        metrics |= {
            "num_trained": float(plan.num_terms),
            "num_outlying_sources": float(len(outliers)),
            "num_idle_groups": float(plan.num_idle_groups),
            "share_without_advantage": 1.0 - plan.num_with_advantage / counted if counted else 0.0,
        }
        self.enter("policy")
        updates: list[Applied] = []
        if plan.minibatches:
            with meter.phase("proximal"):
                minibatches = self._with_proximal(plan.minibatches)
            rate = self._scheduled()
            is_warm = self.num_steps >= self.settings.warmup_steps
            updated, updates = self._update(
                minibatches,
                self._policy_loss,
                meter,
                learning_rate=self.settings.first_learning_rate * self.region.rate_factor * rate,
            )
            metrics |= updated
            moves = moves_of(updates)
            self.region.follow(moves, spread=metrics["spread"], schedule=rate, is_warm=is_warm)
            if self.critic is not None:
                of_critic = self.critic.update(minibatches, meter, rate=rate)
                skipped = metrics["num_skipped_updates"] + of_critic["num_skipped_updates"]
                metrics |= {**of_critic, "num_skipped_updates": skipped}
        if self._record is not None:
            self.tokens = self._record.gathered(plan.minibatches, updates)
            self._record = None
        self.num_steps += 1
        if self.critic is not None:
            self.critic.num_steps += 1
        self._notices.add(metrics)
        return metrics | self._cost(plan.minibatches, meter)

    def learn(
        self, rows: Sequence[Demonstration], *, learning_rate: float, divisor: float | None = None
    ) -> dict[str, float]:
        """One update on weighted sequences."""
        meter = Meter()
        with meter.phase("plan"):
            examples = [example for row in rows if (example := self._example(row)) is not None]
            count = sum(len(example.targets_T) for example in examples)
            minibatch = self._planner.minibatch(
                examples, divisor=float(count) if divisor is None else divisor, version=0
            )
        metrics = {
            "num_tokens": float(sum(len(row.tokens) for row in rows)),
            "num_trained": float(count),
            "num_updates": 0.0,
        }
        self.enter("imitation")
        if count:
            learning_rate *= self._scheduled() if self.spec.fine_tunes else 1.0
            with dropout(self.policy):
                updated, _ = self._update(
                    [minibatch],
                    lambda logprobs_T, _entropies, _minibatch, batch, _progress: imitation(
                        logprobs_T, batch.advantages_T, batch.mask_T
                    ),
                    meter,
                    learning_rate=learning_rate,
                )
            metrics |= updated
        self.num_steps += 1
        return metrics | self._cost([minibatch], meter)

    def score(self, rows: Sequence[Demonstration]) -> list[float]:
        """The summed logprobs of the trained tokens of each row, or its reward, under the current weights."""
        examples = [self._example(row) for row in rows]
        return sequence_scores(self._planner, examples, self._logprobs)

    def _example(self, row: Demonstration) -> Example | None:
        if self.spec.learns_rewards:
            row = judged(row)
        return make_demonstration(row.tokens, row.loss_mask, row.weight)

    # what the estimator may read

    def _evidence(
        self, groups: Sequence[TrajectoryGroup], meter: Meter, *, version: int
    ) -> Evidence:
        """Baselines, and the logprobs of the reference and the values of the critic for every trained token."""
        if self.reference is None and self.critic is None:
            return Evidence(self.baselines)
        with meter.phase("score"):
            examples = sampled_examples(groups)
            minibatch = self._planner.minibatch(examples, divisor=1.0, version=version)

            def rows(score_of: Callable[[Batch], Tensor]) -> PerToken:
                return score(self._planner, minibatch, groups, score_of)

            def reference(batch: Batch) -> Tensor:
                return self._logprobs(batch, self.reference)

            return Evidence(
                self.baselines,
                values=rows(self.critic.values) if self.critic is not None else None,
                reference=rows(reference) if self.reference is not None else None,
            )

    def _find_outliers(self, groups: Sequence[TrajectoryGroup]) -> Mapping[str, str]:
        """The sources with a reward so far out that the baseline bounded it, each with a line for the user."""
        estimator = self.algorithm.advantages
        outliers = (
            estimator.outliers(groups, self.baselines)
            if isinstance(estimator, NamesOutliers)
            else {}
        )
        self._notices.begin(outliers)
        return outliers

    # the trust region's centre

    def _with_proximal(self, minibatches: list[Minibatch]) -> list[Minibatch]:
        """The minibatches with p known, except the first, which starts from p itself."""
        if self.algorithm.proximal is not Proximal.RECOMPUTE:
            return minibatches
        first, *later = minibatches
        known = [[b.with_proximal(self._logprobs(b)) for b in m.batches] for m in later]
        return [first, *(replace(m, batches=b) for m, b in zip(later, known, strict=True))]

    def _centre(self, logprobs_T: Tensor, batch: Batch, progress: float) -> Tensor:
        if batch.proximal_T is not None:
            return batch.proximal_T
        if self.algorithm.proximal is Proximal.BEHAVIOUR:
            return batch.behaviour_T
        return interpolate(batch.behaviour_T, logprobs_T, batch.lags_T, progress=progress)

    def _screened(self, minibatch: Minibatch, progress: float) -> Minibatch:
        """The minibatch without the terms that the objective screens out, if the objective has a screen."""
        objective = self.algorithm.objective
        if not self.needs.minibatch or self.phase != "policy":
            return minibatch
        assert isinstance(objective, Screens), "checked with the algorithm"
        batches = [
            b
            if b.proximal_T is not None
            else b.with_proximal(self._centre(self._logprobs(b), b, progress))
            for b in minibatch.batches
        ]
        log_weights = [self._log_weights(batch) for batch in batches]
        keep = objective.keep(gather(minibatch, log_weights, self.ranks.rows))
        return replace(minibatch, batches=[replace(b, kept_T=keep[b.indices_T]) for b in batches])

    def _log_weights(self, batch: Batch) -> Tensor:
        assert batch.proximal_T is not None
        return masked(batch.proximal_T - batch.behaviour_T, batch.mask_T)

    # updating

    def _update(
        self,
        minibatches: Sequence[Minibatch],
        loss_of: LossOf,
        meter: Meter,
        *,
        learning_rate: float,
    ) -> tuple[dict[str, float], list[Applied]]:
        """One optimiser update for each minibatch that has a gradient: the metrics of all, and each update."""
        sums, updates = {"loss": 0.0}, list[Applied]()
        num_updates = self.num_updates
        learning_rate *= warmed_up(self.settings, step=self.num_steps)
        entropy_gradient = self.needs.entropy and self.phase == "policy"
        for index, planned in enumerate(minibatches):
            progress = index / len(minibatches)
            with meter.phase("proximal"):
                minibatch = self._screened(planned, progress)
            # FSDP averages gradients over ranks; ours are sums.
            scale = self.ranks.size / minibatch.divisor
            for batch in summed_at_the_end(self.policy, minibatch.batches, self.settings):
                with meter.phase("forward"), self._autocast():
                    logprobs_T, entropies_T = self.policy(batch, entropy_gradient=entropy_gradient)
                with meter.phase("backward"):
                    loss = loss_of(logprobs_T, entropies_T, minibatch, batch, progress)
                    weighted = loss.weighted(batch.weights_T)
                    torch.autograd.backward(weighted * scale)
                meter.add(loss, {"entropy": masked(entropies_T.detach(), batch.mask_T).sum()})
                if self.phase == "policy" and index == 0:
                    meter.add_pairs(disagreement(logprobs_T, batch))
                meter.note(weighted, sums, "loss", minibatch.divisor)
            updates.append(self._move(planned.probe, meter, learning_rate=learning_rate))
        grad_norms = [update.grad_norm for update in updates]
        num_terms = sum(minibatch.num_terms for minibatch in minibatches)
        reduced = meter.reduce(self.ranks.rows, num_terms=num_terms)
        metrics = {
            "loss": self.ranks.rows.sum({"loss": sums["loss"] / len(minibatches)})["loss"],
            "grad_norm": worst(grad_norms),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "num_updates": float(self.num_updates - num_updates),
            "num_skipped_updates": float(sum(not math.isfinite(norm) for norm in grad_norms)),
            **reduced,
            **summary(moves_of(updates)),
        }
        return metrics, updates

    def _policy_loss(
        self,
        logprobs_T: Tensor,
        entropies_T: Tensor,
        minibatch: Minibatch,
        batch: Batch,
        progress: float,
    ) -> Loss:
        terms = minibatch.terms(
            batch,
            logprobs_T,
            self._centre(logprobs_T, batch, progress),
            entropies_T if self.needs.entropy else None,
        )
        loss = self.algorithm.objective(terms)
        if self._record is not None:
            self._record.add(minibatch, batch, terms, loss, entropies_T)
        return loss

    def _logprobs(
        self, batch: Batch, model: Policy | RewardModel | WithoutAdapter | None = None
    ) -> Tensor:
        """Logprobs of the terms under `model` (default: the policy), without a gradient. A collective."""
        with torch.no_grad(), self._autocast():
            logprobs_T: Tensor = (model or self.policy)(batch)[0]
        return logprobs_T

    def _move(self, probe: Probe | None, meter: Meter, *, learning_rate: float) -> Applied:
        """One update of the policy, held within the trust region."""
        with frozen_ends_kept_whole(self.policy):
            with meter.phase("trust_region"):
                movement = (
                    Movement(probe, self.policy, self._autocast, self.ranks.rows) if probe else None
                )
            with meter.phase("optimizer"):
                applied = self._apply_gradients(learning_rate)
            if applied.update is None or movement is None:
                return applied
            with meter.phase("trust_region"):
                bound = self.region.bound(movement.probe.tokens_per_episode)
                moved = self.region.hold(applied.update, movement, bound=bound)
                return replace(applied, moved=moved)

    def _apply_gradients(self, learning_rate: float) -> Applied:
        applied = apply_gradients(
            self.policy, self.optimizer, self.settings, learning_rate=learning_rate
        )
        self.num_updates += applied.update is not None
        return applied

    def enter(self, phase: str) -> None:
        """Begin the phase, unless the trainer is in it."""
        if phase != self.phase:
            self.phase, self.num_updates, self.num_steps = phase, 0, 0
            self.optimizer.state.clear()

    def _scheduled(self) -> float:
        return scheduled(self.settings, step=self.num_steps, num_steps=self.spec.run.steps)

    def _autocast(self) -> torch.autocast:
        enabled = self.settings.precision == "bfloat16"
        return torch.autocast(self.ranks.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _cost(self, minibatches: Sequence[Minibatch], meter: Meter) -> dict[str, float]:
        """The computed tokens and the time of the step."""
        computed = sum(len(b.tokens_N) for m in minibatches for b in m.batches)
        return {
            **self.ranks.rows.sum({"num_computed": float(computed)}),
            **meter.spent(self.ranks),
        }
