"""One optimiser step from trajectory groups to metrics; every rank runs the same code.

    groups -> advantages -> examples -> minibatches -> trees in rows, dealt to the ranks
           -> [proximal logprobs] -> per minibatch: forward, loss / N, backward; clip; AdamW

Each rank gets the same groups and derives the same plan from them, so that nothing about the work
needs to be agreed upon; only gradients and metrics are reduced.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from areal_sdk.algorithms.advantages import Baselines, NamesOutliers
from areal_sdk.algorithms.batch import Batch, empty_batch, make_batch
from areal_sdk.algorithms.examples import Example, make_demonstration, make_example
from areal_sdk.algorithms.losses import Loss, PolicyTerms, imitation, interpolate, masked
from areal_sdk.algorithms.packing import plan_rows, split_evenly
from areal_sdk.algorithms.presets import Algorithm, Proximal
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.collectives import Ranks, global_grad_norm
from areal_sdk.fsdp.policy import load_policy
from areal_sdk.fsdp.sequences import sequence_sums
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.options import validate_options
from areal_sdk.process.user_code import load_user_object
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import TrajectoryGroup

BETAS = (0.9, 0.999)
"""Of AdamW. The second remembers the large gradients of the start: with a short memory, a nearly
solved task's tiny, noisy gradients would be scaled up to full steps and undo what was learned."""

LossOf = Callable[[Tensor, Batch, float], Loss]
"""The loss of (logprobs, batch, fraction of the step's minibatches done before this one)."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The work of one optimiser update, as this rank sees it."""

    batches: list[Batch]
    num_trained: float
    """Trained tokens over *all* ranks, those without an advantage included: the divisor."""
    num_terms: int
    """Of these, the ones with an advantage."""


@dataclass(slots=True)
class _Meter:
    """Sums and maxima over the micro-batches of a step, and CPU-seconds by phase."""

    totals: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)

    def add(self, loss: Loss, totals: Mapping[str, Tensor]) -> None:
        for name, value in (*loss.totals.items(), *totals.items()):
            self.totals[name] = self.totals.get(name, 0.0) + float(value)
        for name, value in loss.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, -math.inf), float(value))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.cpu_s[name] = self.cpu_s.get(name, 0.0) + time.process_time() - began


class RankTrainer:
    """Policy, optimiser and objective of one rank."""

    def __init__(self, spec: TrainerSpec, ranks: Ranks | None = None) -> None:
        self.spec = spec
        self.settings = spec.trainer
        self.ranks = ranks or Ranks()
        self.algorithm = _make_algorithm(spec)
        self.policy = load_policy(
            spec.model_dir,
            device=self.ranks.device,
            exact_head=self.settings.head_precision == "float32",
        )
        self.ranks.shard(self.policy)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            betas=BETAS,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )
        self.phase = ""
        """`policy` or `imitation`: an optimiser's state does not outlive its loss."""
        self.num_updates = 0
        """Optimiser updates of this phase; drives the warm-up."""
        self.baselines: Baselines = {}
        self.notices: list[str] = []
        """What the latest step says to the user: each source with a wrong reward once."""
        self._named: set[str] = set()

    def step(self, groups: Sequence[TrajectoryGroup], *, version: int) -> dict[str, float]:
        """Train on `groups`, sampled by policies up to `version`; returns what to report.

        With nothing to train, `num_trained` is 0 and neither weights nor optimiser change.
        """
        meter, began = _Meter(), time.monotonic()
        with meter.phase("plan"):
            outliers = self._find_outliers(groups)
            advantages, self.baselines = self.algorithm.advantages(groups, self.baselines)
            examples = [
                [
                    example
                    for trajectory, values in zip(group.trajectories, of_group, strict=True)
                    if (example := make_example(trajectory, values)) is not None
                ]
                for group, of_group in zip(groups, advantages, strict=True)
            ]
            counts = [sum(t.num_trained for t in group.trajectories) for group in groups]
            minibatches = [
                self._minibatch(
                    [example for i in part for example in examples[i]],
                    num_trained=sum(counts[i] for i in part),
                    version=version,
                )
                for part in split_evenly(counts, self.settings.num_minibatches)
            ]
            # All ranks agree on which are empty: they planned from the same groups.
            minibatches = [minibatch for minibatch in minibatches if minibatch.num_terms]
        metrics = _describe(groups, [e for of_group in examples for e in of_group], version=version)
        metrics["num_outlying_sources"] = float(len(outliers))
        metrics["num_idle_groups"] = float(sum(not of_group for of_group in examples))
        if minibatches:
            self._enter("policy")
            with meter.phase("proximal"):
                minibatches = self._with_proximal(minibatches)
            metrics |= self._update(
                minibatches, self._policy_loss, meter, learning_rate=self.settings.learning_rate
            )
        return metrics | self._cost(minibatches, meter, began)

    def learn(
        self, rows: Sequence[Demonstration], *, learning_rate: float, divisor: float | None = None
    ) -> dict[str, float]:
        """One update on weighted sequences."""
        meter, began = _Meter(), time.monotonic()
        with meter.phase("plan"):
            made = (make_demonstration(row.tokens, row.loss_mask, row.weight) for row in rows)
            examples = [example for example in made if example is not None]
            count = sum(len(example.targets_T) for example in examples)
            minibatch = self._minibatch(
                examples, num_trained=count if divisor is None else divisor, version=0
            )
        metrics = {
            "num_tokens": float(sum(len(row.tokens) for row in rows)),
            "num_trained": float(count),
            "num_updates": 0.0,
        }
        if count:
            self._enter("imitation")
            metrics |= self._update(
                [minibatch],
                lambda logprobs_T, batch, _: imitation(
                    logprobs_T, batch.advantages_T, batch.mask_T
                ),
                meter,
                learning_rate=learning_rate,
            )
        return metrics | self._cost([minibatch], meter, began)

    def score(self, rows: Sequence[Demonstration]) -> list[float]:
        """The summed logprobs of the trained tokens of each row, under the current weights."""
        made = [make_demonstration(row.tokens, row.loss_mask) for row in rows]
        places = [index for index, example in enumerate(made) if example is not None]
        examples = [example for example in made if example is not None]
        scores = [0.0] * len(rows)
        if not examples:
            return scores
        batches = self._minibatch(examples, num_trained=1, version=0).batches
        with torch.no_grad(), self._autocast():
            values = [self.policy(batch)[0] for batch in batches]
        sums = sequence_sums(batches, values, count=len(examples), ranks=self.ranks)
        for place, total in zip(places, sums, strict=True):
            scores[place] = total
        return scores

    def _find_outliers(self, groups: Sequence[TrajectoryGroup]) -> Mapping[str, str]:
        """Which sources posted a reward that their baseline did not take at its word."""
        estimator = self.algorithm.advantages
        outliers = (
            estimator.outliers(groups, self.baselines)
            if isinstance(estimator, NamesOutliers)
            else {}
        )
        self.notices = [
            f"{source}: {what}; look at who rewards there"
            for source, what in outliers.items()
            if source not in self._named
        ]
        self._named |= outliers.keys()
        return outliers

    # planning

    def _minibatch(
        self, examples: Sequence[Example], *, num_trained: float, version: int
    ) -> Minibatch:
        if not examples:
            return Minibatch([], num_trained, 0)
        rows_of_rank = plan_rows(
            [example.inputs for example in examples],
            max_tokens=self.settings.tokens_per_microbatch,
            num_ranks=self.ranks.size,
            share=self.settings.share_prompts,
        )
        device = self.ranks.device
        batches = [
            make_batch(trees, examples, version=version, device=device)
            for trees in rows_of_rank[self.ranks.rank]
        ]
        # Forward and backward are collectives: every rank does as many as the busiest one.
        missing = max(map(len, rows_of_rank)) - len(batches)
        batches += [empty_batch(device=device)] * missing
        return Minibatch(batches, num_trained, sum(len(e.targets_T) for e in examples))

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

    # updating

    def _update(
        self,
        minibatches: Sequence[Minibatch],
        loss_of: LossOf,
        meter: _Meter,
        *,
        learning_rate: float,
    ) -> dict[str, float]:
        """One optimiser update for each minibatch."""
        loss_sum, grad_norms, num_skipped = 0.0, [], 0
        for index, minibatch in enumerate(minibatches):
            # FSDP averages gradients over ranks; ours are sums.
            scale = self.ranks.size / minibatch.num_trained
            for batch in minibatch.batches:
                with meter.phase("forward"), self._autocast():
                    logprobs_T, entropies_T = self.policy(batch)
                with meter.phase("backward"):
                    loss = loss_of(logprobs_T, batch, index / len(minibatches))
                    torch.autograd.backward(loss.sum * scale)
                meter.add(loss, {"entropy": masked(entropies_T, batch.mask_T).sum()})
                loss_sum += loss.sum.item() / minibatch.num_trained
            with meter.phase("optimizer"):
                grad_norms.append(self._apply_gradients(learning_rate))
            num_skipped += not math.isfinite(grad_norms[-1])
        num_terms = sum(minibatch.num_terms for minibatch in minibatches)
        sums = self.ranks.sum({"loss": loss_sum / len(minibatches), **meter.totals})
        loss_mean = sums.pop("loss")
        return {
            "loss": loss_mean,
            "grad_norm": max(grad_norms, key=lambda norm: (not math.isfinite(norm), norm)),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "num_updates": float(len(minibatches) - num_skipped),
            "num_skipped_updates": float(num_skipped),
            **{name: total / num_terms for name, total in sums.items()},
            **self.ranks.max(meter.maxima),
        }

    def _policy_loss(self, logprobs_T: Tensor, batch: Batch, progress: float) -> Loss:
        proximal_T = batch.proximal_T
        if proximal_T is None:
            proximal_T = interpolate(batch.behaviour_T, logprobs_T, batch.lags_T, progress=progress)
        return self.algorithm.objective(
            PolicyTerms(
                current_T=logprobs_T,
                proximal_T=proximal_T,
                behaviour_T=batch.behaviour_T,
                advantages_T=batch.advantages_T,
                mask_T=batch.mask_T,
                sequences_T=batch.sequences_T,
            )
        )

    def _apply_gradients(self, learning_rate: float) -> float:
        """Clip, update, forget the gradients; returns their norm before clipping.

        A gradient that is not finite would poison weights and moments for good: it is dropped, on
        all ranks alike since all know the same norm, and reported.
        """
        parameters = list(self.policy.parameters())
        norm = global_grad_norm(parameters)
        if torch.isfinite(norm):
            torch.nn.utils.clip_grads_with_norm_(parameters, self.settings.max_grad_norm, norm)
            warmup = min(1.0, (self.num_updates + 1) / max(1, self.settings.warmup_steps))
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate * warmup
            self.optimizer.step()
            self.num_updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm.item()

    def _enter(self, phase: str) -> None:
        if phase != self.phase:
            self.phase, self.num_updates = phase, 0
            self.optimizer.state.clear()

    def _autocast(self) -> torch.autocast:
        enabled = self.settings.precision == "bfloat16"
        return torch.autocast(self.ranks.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _cost(
        self, minibatches: Sequence[Minibatch], meter: _Meter, began: float
    ) -> dict[str, float]:
        """What the step took, on this rank, and over all ranks where that is a sum."""
        computed = sum(len(b.tokens_N) for m in minibatches for b in m.batches)
        cpu_s = {f"cpu_{name}_s": seconds for name, seconds in meter.cpu_s.items()}
        sums = self.ranks.sum(
            {"num_computed": float(computed), **cpu_s, "cpu_s": sum(cpu_s.values())}
        )
        return {**sums, "wall_s": time.monotonic() - began}


def _make_algorithm(spec: TrainerSpec) -> Algorithm:
    name, preset = spec.algorithm.name, load_user_object(spec.preset.reference)
    options = validate_options(preset, spec.preset.options, table=f"algorithm.{name}")
    algorithm = preset(**options)
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm {name!r} gave {algorithm!r}: a preset takes its options as keyword "
            "parameters and returns an Algorithm (areal_sdk.algorithms.presets)"
        )
    return algorithm


def _describe(
    groups: Sequence[TrajectoryGroup], examples: Sequence[Example], *, version: int
) -> dict[str, float]:
    """Counts and staleness of what is trained."""
    trajectories = [t for group in groups for t in group.trajectories]
    lags = [
        version - v for t in trajectories for v, m in zip(t.versions, t.loss_mask, strict=True) if m
    ]
    if lags and min(lags) < 0:
        raise ValueError(
            f"a token of version {version - min(lags)} in a step that starts from {version}"
        )
    return {
        "num_groups": float(len(groups)),
        "num_trajectories": float(len(trajectories)),
        "num_tokens": float(sum(len(t.tokens) for t in trajectories)),
        "num_counted": float(len(lags)),
        "num_trained": float(sum(len(e.targets_T) for e in examples)),
        "staleness_mean": sum(lags) / len(lags) if lags else 0.0,
        "staleness_max": float(max(lags, default=0)),
    }
