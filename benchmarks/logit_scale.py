"""The effect on learning of a trainer that ignores a family's logit scale: tiny Granite and Cohere
models.

python benchmarks/logit_scale.py [--seeds 4] [--steps 60] [--write]

Granite divides its logits by `logits_scaling`, Cohere multiplies them by `logit_scale`. Engines sample
from the scaled logits. Up to commit e24ea84 the trainer took its logprobs from the logits before that.

Both arms train one random model (2 layers, 64 tokens) with the package's own trainer and GRPO, and
sample from a plain transformers forward, so that the stored logprobs are right. A prompt names one of
4 classes; each of 3 sampled tokens that belongs to it earns a third of the reward: 0.25 by chance. A
step trains 8 groups of 8. The output layer is as large as makes the scaled logits spread by one, as
those of a trained model do.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import transformers
from tables import table, write_section
from transformers import AutoConfig, AutoModelForCausalLM

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

FAMILIES: dict[str, dict[str, Any]] = {
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.0625},
}
VOCABULARY, NUM_CLASSES, NUM_SAMPLED, NUM_GROUPS, NUM_SIBLINGS = 64, 4, 3, 8, 8
SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LEARNING_RATE = 2e-3
LAST = 10
"""Steps whose mean is the final reward."""


@dataclass(frozen=True)
class Run:
    """One training run."""

    rewards: Sequence[float]
    """The mean of each step's episodes."""
    divergence: float
    """KL of the trainer's distribution from the sampled one, in nats a token, at the first step."""

    @property
    def final(self) -> float:
        return mean(self.rewards[-LAST:])


def save_model(directory: Path, family: str, *, seed: int) -> Path:
    config = AutoConfig.for_model(family, **SIZE, **FAMILIES[family])
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        prompts = torch.arange(NUM_CLASSES)[:, None] + torch.tensor([[0, 3]])
        spread = model(prompts).logits.std()
        model.get_output_embeddings().weight /= spread
    model.save_pretrained(directory)
    return directory


@torch.no_grad()
def sample(model: Any, generator: torch.Generator) -> Iterator[TrajectoryGroup]:
    """The groups of one step, sampled all at once."""
    classes = [number % NUM_CLASSES for number in range(NUM_GROUPS)]
    tokens = torch.tensor([[c, 3] for c in classes for _ in range(NUM_SIBLINGS)])
    logprobs = torch.zeros(tokens.shape)
    for _ in range(NUM_SAMPLED):
        distributions = torch.log_softmax(model(tokens).logits[:, -1], -1)
        chosen = torch.multinomial(distributions.exp(), 1, generator=generator)
        tokens = torch.cat([tokens, chosen], 1)
        logprobs = torch.cat([logprobs, distributions.gather(1, chosen)], 1)
    rows = [
        episode(f"{number}", *row)
        for number, row in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True))
    ]
    for number, wanted in enumerate(classes):
        of_group = rows[number * NUM_SIBLINGS : (number + 1) * NUM_SIBLINGS]
        yield TrajectoryGroup(str(number), f"class {wanted}", tuple(of_group))


def episode(name: str, tokens: Sequence[int], logprobs: Sequence[float]) -> Trajectory:
    num_prompt = len(tokens) - NUM_SAMPLED
    sampled = (False,) * num_prompt + (True,) * NUM_SAMPLED
    wanted = tokens[0]
    return Trajectory(
        episode_id=name,
        task_id=f"class {wanted}",
        tokens=tuple(tokens),
        loss_mask=sampled,
        logprobs=tuple(logprobs),
        versions=tuple(0 if is_sampled else -1 for is_sampled in sampled),
        temperatures=(1.0,) * len(tokens),
        turn_of_token=tuple(0 if is_sampled else -1 for is_sampled in sampled),
        reward=mean(float(token % NUM_CLASSES == wanted) for token in tokens[num_prompt:]),
    )


def train(directory: Path, *, seed: int, steps: int, ignores_scale: bool) -> Run:
    settings = TrainerSection(
        learning_rate=LEARNING_RATE, warmup_steps=0, precision="float32", device="cpu"
    )
    trainer = RankTrainer(TrainerSpec(directory, trainer=settings))
    if ignores_scale:
        trainer.policy.logit_scale = 1.0
    sampler = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    rewards: list[float] = []
    first: dict[str, float] = {}
    for version in range(steps):
        sampler.load_state_dict(trainer.policy.model.state_dict())
        groups = list(sample(sampler, generator))
        rewards.append(mean(row.reward for group in groups for row in group.trajectories))
        metrics = trainer.step(groups, version=version)
        first = first or metrics
    return Run(rewards, divergence=first["kl_behaviour"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    rows = []
    for family, scale in FAMILIES.items():
        for name, ignores_scale in (("before (e24ea84)", True), ("now", False)):
            runs = []
            for seed in range(options.seeds):
                with tempfile.TemporaryDirectory() as directory:
                    model = save_model(Path(directory), family, seed=seed)
                    run = train(model, seed=seed, steps=options.steps, ignores_scale=ignores_scale)
                runs.append(run)
                curve = " ".join(f"{reward:.2f}" for reward in run.rewards[::LAST])
                print(f"{family}, {name}, seed {seed}: {curve}, final {run.final:.3f}", flush=True)
            finals = [run.final for run in runs]
            (setting,) = scale.items()
            rows.append(
                (
                    f"{family}, `{setting[0]}` {setting[1]:g}",
                    name,
                    f"{mean(run.divergence for run in runs):.3f}",
                    f"{mean(run.rewards[0] for run in runs):.3f}",
                    f"{mean(finals):.3f} ({min(finals):.3f} to {max(finals):.3f})",
                )
            )
    header = ("model", "trainer", "KL(sampler, trainer)", "first reward", "final reward")
    print(table(header, rows))
    if options.write:
        write_section(
            "logit-scale",
            "## Logits that are scaled\n\n`python benchmarks/logit_scale.py --write`. "
            f"{options.seeds} seeds, {options.steps} steps. The final reward is the mean of the last "
            f"{LAST} steps (lowest to highest seed); chance earns 0.25. The divergence is in nats a "
            "token, at the first step. The docstring of the program describes the task.\n\n"
            + table(header, rows),
        )


if __name__ == "__main__":
    main()
