"""A run in one process: a small model plays, the package's own trainer learns, step by step.

Nothing is asynchronous here, so the staleness of every sample is chosen: the samples of step v come
from the weights of step v - eta. Sampling is a plain transformers forward; losses, advantages,
minibatches and the optimiser are those of a real run.

Shapes: B rows that are played at once, L tokens of a row.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trainer import PresetSpec
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

SIZE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def quiet() -> None:
    """One thread, no progress bars."""
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()


def save_model(directory: Path, *, vocabulary: int, layers: int, seed: int) -> Path:
    """A random Qwen3 model of about 12,000 parameters a layer."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model("qwen3", vocab_size=vocabulary, num_hidden_layers=layers, **SIZE)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


Weights = dict[str, Tensor]


class Player:
    """A policy of one version, and the random numbers that it samples with."""

    def __init__(self, directory: Path, *, seed: int) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.model.eval()
        self.generator = torch.Generator().manual_seed(seed)
        self.version = 0

    def load(self, weights: Weights, version: int) -> None:
        self.model.load_state_dict(weights)
        self.version = version

    @torch.no_grad()
    def sample(self, tokens_BL: Tensor) -> tuple[Tensor, Tensor]:
        """The next token of every row, and its logprob."""
        logits_BV = self.model(tokens_BL, use_cache=False, logits_to_keep=1).logits[:, -1]
        logprobs_BV = torch.log_softmax(logits_BV, -1)
        chosen_B1 = torch.multinomial(logprobs_BV.exp(), 1, generator=self.generator)
        return chosen_B1[:, 0], logprobs_BV.gather(1, chosen_B1)[:, 0]


Played = Sequence[tuple[int, float | None]]
"""The tokens of an episode, each with its logprob; None where the token was not sampled."""


def trajectory(name: str, task: str, played: Played, *, version: int, reward: float) -> Trajectory:
    """The trajectory that a run would store of the episode. Each run of sampled tokens is a turn."""
    turns, turn = [], -1
    previous: float | None = None
    for _, logprob in played:
        turn += logprob is not None and previous is None
        turns.append(turn if logprob is not None else -1)
        previous = logprob
    mask = tuple(logprob is not None for _, logprob in played)
    return Trajectory(
        episode_id=name,
        task_id=task,
        tokens=tuple(token for token, _ in played),
        loss_mask=mask,
        logprobs=tuple(logprob or 0.0 for _, logprob in played),
        versions=tuple(version if sampled else -1 for sampled in mask),
        temperatures=(1.0,) * len(played),
        turn_of_token=tuple(turns),
        reward=reward,
    )


@dataclass(frozen=True)
class Arm:
    """An algorithm of a comparison, with its options, under a name of its own."""

    name: str
    preset: str
    """A name, or a reference `module:function`."""
    options: dict[str, Any] = field(default_factory=dict)

    def trainer(self, directory: Path, *, learning_rate: float | str, **more: Any) -> RankTrainer:
        """`more` are settings of the trainer section."""
        values = {"warmup_steps": 0, "precision": "float32", "device": "cpu", **more}
        settings = TrainerSection.model_validate({**values, "learning_rate": learning_rate})
        known = ALGORITHMS.get(self.preset)
        reference = f"areal_sdk.algorithms.presets:{known}" if known else self.preset
        preset = PresetSpec(reference, self.options, self.preset)
        return RankTrainer(TrainerSpec(directory, trainer=settings, preset=preset))


@dataclass(frozen=True)
class Curve:
    """One run: how well fresh samples of the current weights did, and what it took to get there."""

    steps: list[int]
    scores: list[float]
    cpu_s: list[float]
    """CPU-seconds of playing and training up to the step, without the evaluations."""
    per_step: dict[str, list[float]] = field(default_factory=dict)
    """Observed figures of every step, by name."""

    def final(self, since: int) -> float:
        """The mean score of the evaluations from step `since` on."""
        last = [y for x, y in zip(self.steps, self.scores, strict=True) if x >= since]
        return sum(last) / len(last)

    def reaches(self, threshold: float) -> tuple[int, float] | None:
        """Steps and CPU-seconds until the first evaluation that is at least `threshold`."""
        for step, score, cpu_s in zip(self.steps, self.scores, self.cpu_s, strict=True):
            if score >= threshold:
                return step, cpu_s
        return None


Play = Callable[[Player, int], Sequence[TrajectoryGroup]]
"""The groups of one step, by (player, step)."""
Evaluate = Callable[[Player], float]


@dataclass(frozen=True)
class Taken:
    """A step that was taken: what it learnt from, what the trainer reports, the weights around it."""

    groups: Sequence[TrajectoryGroup]
    metrics: dict[str, float]
    before: Weights
    after: Weights


Observe = Callable[[Taken], dict[str, float]]
"""Function that returns the figures to remember of a step."""


def train(
    trainer: RankTrainer,
    player: Player,
    play: Play,
    evaluate: Evaluate,
    *,
    steps: int,
    eta: int,
    evaluated: Callable[[int], bool],
    observe: Observe | None = None,
) -> Curve:
    """Train on samples that are `eta` versions old; the first steps have no older weights than 0."""
    kept: deque[Weights] = deque(maxlen=eta + 1)
    judge = Player(trainer.spec.model_dir, seed=0)  # a generator of its own: it disturbs no arm
    curve = Curve([], [], [])
    spent = 0.0
    for step in range(steps + 1):
        weights = trainer.policy.model.state_dict()
        kept.append({name: tensor.clone() for name, tensor in weights.items()})
        if evaluated(step):
            judge.load(kept[-1], step)
            curve.steps.append(step)
            curve.scores.append(evaluate(judge))
            curve.cpu_s.append(spent)
        if step == steps:
            break
        began = time.process_time()
        player.load(kept[0], max(0, step - eta))
        groups = play(player, step)
        metrics = trainer.step(groups, version=step)
        spent += time.process_time() - began
        if observe is not None:
            taken = Taken(groups, metrics, kept[-1], trainer.policy.model.state_dict())
            for name, value in observe(taken).items():
                curve.per_step.setdefault(name, []).append(value)
    return curve
