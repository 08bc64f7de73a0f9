"""`explain` agrees with the step computed anew from episodes and plain models, for every preset."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.fsdp.checkpoint import export_model
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.records.explain import Receipt, Term, explain
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.telemetry import EpisodeWriter, RunDir
from areal_sdk.telemetry.token_log import TokenWriter
from areal_sdk.trajectory import TrajectoryGroup
from areal_sdk.types import Episode, Outcome, Task, Turn

from . import by_hand
from .by_hand import Group, Key
from .episodes import VOCABULARY, thinking
from .specs import trainer_spec, with_preset

NUM_TOKENS = 32
"""Tokens of each case: 512 of all cases."""
OPTIONS: dict[str, dict[str, float]] = {
    "grpo": {"kl": 0.1, "entropy": 0.01},
    "reinforce_plus_plus": {"kl": 0.05},
}
FAST = ("grpo", "gspo", "areal")
CASES = [
    *(
        pytest.param(name, {}, id=name, marks=[] if name in FAST else pytest.mark.long)
        for name in ALGORITHMS.values()
    ),
    pytest.param("grpo", {"lora": {"rank": 4, "alpha": 8.0}}, id="lora", marks=pytest.mark.long),
    pytest.param("grpo", {"share_prompts": False}, id="unshared", marks=pytest.mark.long),
]


def plain(rng: np.random.Generator, prompt: Sequence[int], name: str) -> Episode:
    """Two turns in one sequence, of two temperatures and two versions."""

    def said(asked: Sequence[int], count: int, at: int) -> Turn:
        return Turn(
            tuple(asked),
            tuple(rng.integers(0, VOCABULARY, count).tolist()),
            tuple((-4.0 - 4.0 * rng.random(count)).tolist()),
            (at,) * count,
            temperature=0.7 if at else 1.0,
            parent=0 if at else None,
        )

    first = said(prompt, 5, 0)
    second = said([*first.tokens, *rng.integers(0, VOCABULARY, 4).tolist()], 6, 1)
    turns = (first, second)
    return Episode(name, Task("t"), turns, Outcome.scored(float(rng.random())))


def make_groups(seed: int) -> list[tuple[Group, TrajectoryGroup]]:
    """Siblings that begin alike, some of which fork in every turn."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(4):
        prompt = rng.integers(0, VOCABULARY, 12).tolist()
        play = thinking if number == 3 else plain
        episodes = [
            replace(play(rng, prompt, f"{seed}-{number}.{sibling}"), group=f"{seed}-{number}")
            for sibling in range(3)
        ]
        rows = {episode.id: to_trajectories(episode) for episode in episodes}
        group = TrajectoryGroup(
            f"{seed}-{number}",
            "t",
            tuple(t for of_episode in rows.values() for t in of_episode),
            f"source-{number % 2}",
        )
        sequences = {
            name: tuple(tuple({*t.turn_of_token[t.loss_mask].tolist()}) for t in of_episode)
            for name, of_episode in rows.items()
        }
        made.append((Group(group.source, tuple(episodes), sequences), group))
    return made


@dataclass
class Step:
    """The second step of a trainer, with its models before, between and after its minibatches."""

    run: RunDir
    groups: list[Group]
    earlier: list[Group]
    models: list[Path]
    values: dict[Key, float]
    """What a critic expected of each token."""


def taken(spec: TrainerSpec, preset: str, tmp_path: Path) -> Step:
    trainer = RankTrainer(with_preset(spec, preset, **OPTIONS.get(preset, {})))
    first, second = make_groups(1), make_groups(2)
    trainer.step([group for _, group in first], version=1)
    models: list[Path] = []

    def keep(*_: object) -> None:
        models.append(tmp_path / f"model-{len(models)}")
        export_model(trainer, models[-1], dtype=torch.float32)

    keep()
    values = critic_values(trainer, spec.model_dir, [group for group, _ in second])
    hook = trainer.optimizer.register_step_post_hook(keep)
    trainer.step([group for _, group in second], version=1)
    hook.remove()
    run = RunDir.create(tmp_path, "run")
    run.write_config({"algorithm": {"name": preset}})
    episodes = EpisodeWriter(run.episodes)
    for of_hand, of_trainer in second:
        for episode in of_hand.episodes:
            rows = tuple(t for t in of_trainer.trajectories if t.episode_id == episode.id)
            episodes.write(episode, trajectories=rows, version=1)
    episodes.mark_trained(trainer.credit, step=2)
    episodes.close()
    assert trainer.tokens is not None
    TokenWriter(run.tokens).write(2, trainer.tokens)
    return Step(run, [g for g, _ in second], [g for g, _ in first], models, values)


def critic_values(
    trainer: RankTrainer, model_dir: Path, groups: Sequence[Group]
) -> dict[Key, float]:
    """The values of a critic's weights, in a plain model."""
    if trainer.critic is None:
        return {}
    trunk = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).base_model
    trunk.load_state_dict(trainer.critic.model.trunk.state_dict())
    found: dict[Key, float] = {}
    for episode in (e for group in groups for e in group.episodes):
        for at, turn in enumerate(episode.turns):
            with torch.no_grad():
                hidden = trunk(input_ids=torch.tensor([turn.tokens])).last_hidden_state[0]
                values = trainer.critic.model.head(hidden)[:, 0]
            for place in range(len(turn.output_tokens)):
                found[episode.id, at, place] = float(values[turn.num_prompt - 1 + place])
    return found


@pytest.mark.parametrize(("preset", "settings"), CASES)
def test_explain_agrees_with_the_step_computed_anew(
    model_dir: Path, tmp_path: Path, preset: str, settings: dict[str, Any]
) -> None:
    spec = trainer_spec(
        model_dir,
        precision="float32",
        device="cpu",
        warmup_steps=0,
        learning_rate=5e-3,
        trust_region=0.0,
        num_minibatches=2,
        tokens_per_microbatch=150,
        **settings,
    )
    step = taken(spec, preset, tmp_path)
    expected = computed_anew(step, preset, reference=model_dir)
    generator = random.Random(preset)
    for key in generator.sample(sorted(expected), NUM_TOKENS):
        name, turn, place = key
        receipt = explain(step.run, name, place, turn=turn)
        assert_same(receipt, expected[key], step.groups)


def computed_anew(step: Step, preset: str, *, reference: Path) -> dict[Key, by_hand.Numbers]:
    episodes = {e.id: e for group in step.groups for e in group.episodes}
    ref = {key: q for key, (q, _) in by_hand.logprobs(reference, step.groups).items()}
    before, between = (by_hand.logprobs(path, step.groups) for path in step.models[:2])
    b = {key: episodes[key[0]].turns[key[1]].logprobs[key[2]] for key in ref}
    p = {key: q for key, (q, _) in before.items()}
    A = by_hand.advantages(
        preset, step.groups, earlier=step.earlier, b=b, ref=ref, values=step.values
    )
    found: dict[Key, by_hand.Numbers] = {}
    for q, part in zip((before, between), by_hand.split(step.groups, 2), strict=True):
        groups = [step.groups[index] for index in part]
        found |= by_hand.minibatch(preset, groups, A=A, p=p, q=q, ref=ref, b=b)
    return found


def assert_same(receipt: Receipt, numbers: by_hand.Numbers, groups: Sequence[Group]) -> None:
    """The same up to float32 in the trainer, and to half precision in the file."""
    assert receipt.step == 2
    assert receipt.from_version == 1
    assert receipt.logprob == numbers.b
    assert receipt.advantage == pytest.approx(numbers.A, rel=1e-4, abs=1e-5)
    term = receipt.term
    assert isinstance(term, Term)
    half = 2**-10
    far = abs(numbers.p - numbers.b) + abs(numbers.q - numbers.p)
    assert term.logprob == pytest.approx(numbers.q, abs=half * far + 2e-5)
    assert term.proximal == pytest.approx(numbers.p, abs=half * far + 2e-5)
    assert term.entropy == pytest.approx(numbers.entropy, rel=half)
    assert np.log(term.ratio) == pytest.approx(np.log(numbers.r), rel=half, abs=2e-5)
    assert term.weight == pytest.approx(numbers.w, rel=4 * half)
    assert term.loss == pytest.approx(numbers.loss, rel=2 * half, abs=2e-5)
    assert term.share == pytest.approx(numbers.share)
    assert term.divisor == numbers.divisor
    assert term.part == pytest.approx(
        numbers.share * numbers.loss / numbers.divisor, rel=2 * half, abs=1e-6
    )
    assert term.clip.startswith("below") == numbers.is_low
    assert term.clip.startswith("above") == numbers.is_high
    assert bool(receipt.why_not) == (numbers.w == 0.0)
    group = next(g for g in groups for e in g.episodes if e.id == receipt.episode)
    assert receipt.siblings is not None
    assert [*receipt.siblings.rewards] == [e.id for e in group.episodes]
