"""The trainer of one rank: policy, optimiser and algorithm, and the order of what a step does."""

import math
import time
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
    PolicyTerms,
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
from areal_sdk.fsdp.sharding import summed_at_the_end
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step.critic import CriticTrainer
from areal_sdk.fsdp.step.metrics import (
    Distances,
    Meter,
    describe,
    disagreement,
    disagreement_notice,
)
from areal_sdk.fsdp.step.optimizer import (
    Applied,
    apply_gradients,
    make_optimizer,
    scheduled,
    warmed_up,
    worst,
)
from areal_sdk.fsdp.step.planning import Minibatch, Planner, gather
from areal_sdk.fsdp.step.scoring import plan_scores, score
from areal_sdk.fsdp.step.sequences import sequence_sums
from areal_sdk.fsdp.step.trust_region import Moved, Update, UpdateLimit, divergence, summary
from areal_sdk.process.user_code import load_user_object
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import Credit, TrajectoryGroup

LossOf = Callable[[Tensor, Tensor, Minibatch, Batch, float], Loss]
"""The loss of (logprobs, entropies, minibatch, batch, fraction of the step's minibatches done)."""


class RankTrainer:
    """Policy, optimiser and objective of one rank; a reference and a critic where they are needed."""

    def __init__(self, spec: TrainerSpec, ranks: Ranks | None = None) -> None:
        self.spec = spec
        self.settings = spec.trainer
        self.ranks = ranks or Ranks()
        self.algorithm = make_algorithm(
            spec.algorithm.name, load_user_object(spec.preset.reference), spec.preset.options
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
        """`policy` or `imitation`: an optimiser's state does not outlive its loss."""
        self.num_updates = 0
        """Optimiser updates of this phase."""
        self.num_steps = 0
        """Steps of this phase, those without an update too: the clock of warm-up and schedule."""
        self.region = UpdateLimit(
            self.settings.trust_region, is_followed=self.settings.learning_rate == "auto"
        )
        self.baselines: Baselines = {}
        self.notices: list[str] = []
        """The notices of the latest step: each source with a wrong reward once."""
        self.credit: dict[str, Credit] = {}
        """Of the episodes of the latest step, by id."""
        self._named: set[str] = set()
        self._distances = Distances()
        self._planner = Planner(self.settings, self.ranks.rows)

    def _load_reference(self) -> Policy | WithoutAdapter:
        """The checkpoint that the run began with, also where the run was resumed; never trained."""
        if self.settings.lora.rank:
            return WithoutAdapter(self.policy)
        return load_trained(self.spec, self.ranks, as_it_is).requires_grad_(False)

    def step(self, groups: Sequence[TrajectoryGroup], *, version: int) -> dict[str, float]:
        """Train on `groups`, sampled by policies up to `version`; returns what to report.

        With nothing to train, `num_trained` is 0 and neither weights nor optimiser change.
        """
        meter, began = Meter(), time.monotonic()
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
        counted = metrics["num_counted"]
        metrics |= {
            "num_trained": float(plan.num_terms),
            "num_outlying_sources": float(len(outliers)),
            "num_idle_groups": float(plan.num_idle_groups),
            "share_without_advantage": 1.0 - plan.num_with_advantage / counted if counted else 0.0,
        }
        self._enter("policy")
        if plan.minibatches:
            with meter.phase("proximal"):
                minibatches = self._with_proximal(plan.minibatches)
            rate = self._scheduled()
            is_full = rate == 1.0 and self.num_steps >= self.settings.warmup_steps
            spread = 1.0 - plan.num_idle_groups / len(groups)
            moves: list[Moved] = []
            metrics |= self._update(
                minibatches,
                self._policy_loss,
                meter,
                learning_rate=self.settings.first_learning_rate * self.region.factor * rate,
                moves=moves,
            )
            metrics |= summary(moves)
            self.region.follow(moves, spread=spread, is_full=is_full)
            if self.critic is not None:
                of_critic = self.critic.update(minibatches, meter, rate=rate)
                skipped = metrics["num_skipped_updates"] + of_critic["num_skipped_updates"]
                metrics |= {**of_critic, "num_skipped_updates": skipped}
        self.num_steps += 1
        if self.critic is not None:
            self.critic.num_steps += 1
        self._notice(metrics)
        return metrics | self._cost(plan.minibatches, meter, began)

    def learn(
        self, rows: Sequence[Demonstration], *, learning_rate: float, divisor: float | None = None
    ) -> dict[str, float]:
        """One update on weighted sequences."""
        meter, began = Meter(), time.monotonic()
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
        self._enter("imitation")
        if count:
            learning_rate *= self._scheduled() if self.spec.fine_tunes else 1.0
            with dropout(self.policy):
                metrics |= self._update(
                    [minibatch],
                    lambda logprobs_T, _entropies, _minibatch, batch, _progress: imitation(
                        logprobs_T, batch.advantages_T, batch.mask_T
                    ),
                    meter,
                    learning_rate=learning_rate,
                )
        self.num_steps += 1
        return metrics | self._cost([minibatch], meter, began)

    def score(self, rows: Sequence[Demonstration]) -> list[float]:
        """The summed logprobs of the trained tokens of each row, or its reward, under the current weights."""
        made = [self._example(row) for row in rows]
        places = [index for index, example in enumerate(made) if example is not None]
        examples = [example for example in made if example is not None]
        scores = [0.0] * len(rows)
        if not examples:
            return scores
        batches = self._planner.minibatch(examples, divisor=1.0, version=0).batches
        with torch.no_grad(), self._autocast():
            values = [self.policy(batch)[0] for batch in batches]
        sums = sequence_sums(batches, values, count=len(examples), ranks=self.ranks.rows)
        for place, total in zip(places, sums, strict=True):
            scores[place] = total
        return scores

    def _example(self, row: Demonstration) -> Example | None:
        if self.spec.learns_rewards:
            row = judged(row)
        return make_demonstration(row.tokens, row.loss_mask, row.weight)

    # what the estimator may read

    def _evidence(
        self, groups: Sequence[TrajectoryGroup], meter: Meter, *, version: int
    ) -> Evidence:
        """Baselines, and what the reference and the critic say of every trained token."""
        if self.reference is None and self.critic is None:
            return Evidence(self.baselines)
        with meter.phase("score"):
            minibatch = plan_scores(self._planner, groups, version=version)

            def rows(score_of: Callable[[Batch], Tensor]) -> PerToken:
                return score(self._planner, minibatch, groups, score_of)

            return Evidence(
                self.baselines,
                values=rows(self.critic.values) if self.critic is not None else None,
                reference=rows(self._reference_logprobs) if self.reference is not None else None,
            )

    def _reference_logprobs(self, batch: Batch) -> Tensor:
        assert self.reference is not None
        with self._autocast():
            logprobs_T: Tensor = self.reference(batch)[0]
        return logprobs_T

    def _find_outliers(self, groups: Sequence[TrajectoryGroup]) -> Mapping[str, str]:
        """Which sources posted a reward that their baseline did not take at its word."""
        estimator = self.algorithm.advantages
        outliers = (
            estimator.outliers(groups, self.baselines)
            if isinstance(estimator, NamesOutliers)
            else {}
        )
        self.notices = [
            f"{source}: {what}" if source else what
            for source, what in outliers.items()
            if source not in self._named
        ]
        self._named |= outliers.keys()
        return outliers

    def _notice(self, metrics: Mapping[str, float]) -> None:
        """Tell the user of each kind of trouble once."""
        dtypes = (self.settings.precision, self.spec.publish_dtype)
        found = {
            "disagreement": disagreement_notice(metrics, dtypes),
            "moved": self._distances.notice(metrics),
        }
        for kind, notice in found.items():
            if notice is not None and kind not in self._named:
                self.notices.append(notice)
                self._named.add(kind)

    # the trust region's centre

    def _with_proximal(self, minibatches: list[Minibatch]) -> list[Minibatch]:
        """p for every minibatch but the first, which starts from p itself."""
        if self.algorithm.proximal is not Proximal.RECOMPUTE:
            return minibatches
        first, *later = minibatches
        with torch.no_grad(), self._autocast():
            return [
                first,
                *(
                    replace(m, batches=[b.with_proximal(self.policy(b)[0]) for b in m.batches])
                    for m in later
                ),
            ]

    def _centre(self, logprobs_T: Tensor, batch: Batch, progress: float) -> Tensor:
        if batch.proximal_T is not None:
            return batch.proximal_T
        if self.algorithm.proximal is Proximal.BEHAVIOUR:
            return batch.behaviour_T
        return interpolate(batch.behaviour_T, logprobs_T, batch.lags_T, progress=progress)

    def _screened(self, minibatch: Minibatch, progress: float) -> Minibatch:
        """The minibatch after its objective's look at all its log-weights, if it has one."""
        objective = self.algorithm.objective
        if not self.needs.minibatch or self.phase != "policy":
            return minibatch
        assert isinstance(objective, Screens), "checked with the algorithm"
        batches = minibatch.batches
        with torch.no_grad(), self._autocast():
            batches = [
                b
                if b.proximal_T is not None
                else b.with_proximal(self._centre(self.policy(b)[0], b, progress))
                for b in batches
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
        moves: list[Moved] | None = None,
    ) -> dict[str, float]:
        """One optimiser update for each minibatch that has a gradient; adds to `moves` what the updates did."""
        loss_sum, grad_norms, num_skipped = 0.0, [], 0
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
                loss_sum += weighted.item() / minibatch.divisor
            with meter.phase("trust_region"):
                before = [] if moves is None else self._logprobs(planned)
            with meter.phase("optimizer"):
                applied = self._apply_gradients(learning_rate)
            grad_norms.append(applied.grad_norm)
            if applied.update is not None and moves is not None:
                with meter.phase("trust_region"):
                    moves.append(self._hold(planned, before, applied.update))
            num_skipped += not math.isfinite(grad_norms[-1])
        num_terms = sum(minibatch.num_terms for minibatch in minibatches)
        return {
            "loss": self.ranks.rows.sum({"loss": loss_sum / len(minibatches)})["loss"],
            "grad_norm": worst(grad_norms),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "num_updates": float(self.num_updates - num_updates),
            "num_skipped_updates": float(num_skipped),
            **meter.reduce(self.ranks.rows, num_terms=num_terms),
        }

    def _policy_loss(
        self,
        logprobs_T: Tensor,
        entropies_T: Tensor,
        minibatch: Minibatch,
        batch: Batch,
        progress: float,
    ) -> Loss:
        return self.algorithm.objective(
            PolicyTerms(
                current_T=logprobs_T,
                proximal_T=self._centre(logprobs_T, batch, progress),
                behaviour_T=batch.behaviour_T,
                advantages_T=batch.advantages_T,
                mask_T=batch.mask_T,
                sequences_T=batch.sequences_T,
                groups_T=batch.groups_T,
                lags_T=batch.lags_T,
                weights_T=batch.weights_T,
                divisor=minibatch.divisor,
                reference_T=batch.reference_T,
                values_T=batch.values_T,
                returns_T=batch.returns_T,
                entropies_T=entropies_T if self.needs.entropy else None,
                kept_T=batch.kept_T,
            )
        )

    def _logprobs(self, minibatch: Minibatch) -> list[Tensor]:
        """The logprobs of the sequences that measure an update. A collective."""
        assert minibatch.probe is not None, "every minibatch of a policy has one"
        with torch.no_grad(), self._autocast():
            return [self.policy(batch)[0] for batch in minibatch.probe.batches]

    def _hold(self, minibatch: Minibatch, before: Sequence[Tensor], update: Update) -> Moved:
        """Hold an update within the trust region. A collective."""
        probe = minibatch.probe
        assert probe is not None

        def measure() -> tuple[float, float]:
            return divergence(before, self._logprobs(minibatch), probe, self.ranks.rows)

        return self.region.hold(update, measure, bound=self.region.bound(probe.tokens_per_episode))

    def _apply_gradients(self, learning_rate: float) -> Applied:
        """One update of the policy."""
        applied = apply_gradients(
            self.policy, self.optimizer, self.settings, learning_rate=learning_rate
        )
        self.num_updates += applied.update is not None
        return applied

    def _enter(self, phase: str) -> None:
        if phase != self.phase:
            self.phase, self.num_updates, self.num_steps = phase, 0, 0
            self.optimizer.state.clear()

    def _scheduled(self) -> float:
        return scheduled(self.settings, step=self.num_steps, num_steps=self.spec.run.steps)

    def _autocast(self) -> torch.autocast:
        enabled = self.settings.precision == "bfloat16"
        return torch.autocast(self.ranks.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _cost(
        self, minibatches: Sequence[Minibatch], meter: Meter, began: float
    ) -> dict[str, float]:
        """The time and the computed tokens of the step, on this rank, and over all ranks where that is a sum."""
        computed = sum(len(b.tokens_N) for m in minibatches for b in m.batches)
        cpu_s = {f"cpu_{name}_s": seconds for name, seconds in meter.cpu_s.items()}
        return {
            **self.ranks.rows.sum({"num_computed": float(computed)}),
            **self.ranks.sum({**cpu_s, "cpu_s": sum(cpu_s.values())}),
            "wall_s": time.monotonic() - began,
        }
