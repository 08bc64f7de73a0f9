"""Objectives over a real trainer in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import TrainerSection
from areal_sdk.finetune.objectives import FinetuneObjective, Imitation, Preference, RewardModelling
from areal_sdk.finetune.preferences import DPO
from areal_sdk.finetune.rendering import TokenPair
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trainer import Demonstration, Trainer

SETTINGS = TrainerSection(precision="float32", warmup_steps=0, learning_rate=3e-3)


def answered(prompt: str, answer: str) -> Demonstration:
    tokens = tuple(f"{prompt}{answer}".encode())
    return Demonstration(tokens, (False,) * len(prompt) + (True,) * len(answer))


PAIRS = [
    TokenPair(answered(letter, "yes" * n), answered(letter, "no"))
    for n, letter in enumerate("abcd", 1)
]


class InThisProcess(Trainer):
    """What the objectives need of a trainer, without processes."""

    def __init__(self, model_dir: Path, *, learns_rewards: bool = False, **settings: Any) -> None:
        section = TrainerSection(**{**SETTINGS.model_dump(), **settings})
        self.rank = RankTrainer(
            TrainerSpec(model_dir, trainer=section, learns_rewards=learns_rewards)
        )

    async def learn(
        self,
        rows: Sequence[Demonstration],
        *,
        learning_rate: float,
        divisor: float | None = None,
        timeout_s: float = 600.0,
    ) -> Mapping[str, float]:
        return self.rank.learn(rows, learning_rate=learning_rate, divisor=divisor)

    async def score(
        self, rows: Sequence[Demonstration], *, timeout_s: float = 600.0
    ) -> Sequence[float]:
        return self.rank.score(rows)

    async def start(self) -> None: ...
    async def step(self, *_: Any, **__: Any) -> Mapping[str, float]:
        raise NotImplementedError

    async def publish(self, version: int) -> Any: ...
    async def save(self, *_: Any) -> None: ...
    async def load(self, *_: Any) -> Mapping[str, Any]:
        raise NotImplementedError

    async def export(self, *_: Any) -> None: ...
    async def aclose(self) -> None: ...
    @property
    def info(self) -> Any: ...


async def losses(objective: FinetuneObjective, trainer: Trainer, *, steps: int = 3) -> list[float]:
    await objective.prepare(trainer, [])
    rows = range(objective.num_rows)
    return [(await objective.learn(trainer, rows))["loss"] for _ in range(steps)]


@pytest.mark.parametrize("cut", [{"tokens_per_microbatch": 1}, {"share_prompts": False}])
async def test_micro_batches_change_no_loss_of_pairs(
    model_dir: Path, cut: Mapping[str, Any]
) -> None:
    dpo = DPO(beta=0.5)
    whole = await losses(Preference(SETTINGS, PAIRS, dpo=dpo), InThisProcess(model_dir))
    parts = await losses(Preference(SETTINGS, PAIRS, dpo=dpo), InThisProcess(model_dir, **cut))
    assert parts == pytest.approx(whole, rel=1e-5)
    assert whole[0] == pytest.approx(0.693147, rel=1e-5)
    assert whole[-1] < whole[0]


@pytest.mark.parametrize("length_normalised", [False, True])
async def test_dpo_prefers_what_was_chosen(model_dir: Path, length_normalised: bool) -> None:
    dpo = DPO(beta=0.5, length_normalised=length_normalised)
    objective = Preference(SETTINGS, PAIRS, PAIRS[:2], dpo=dpo)
    trainer = InThisProcess(model_dir)
    await losses(objective, trainer)
    held_out = await objective.measure(trainer)
    assert held_out["accuracy"] == 1.0
    assert held_out["margin"] > 0.0


async def test_dpo_goes_on_from_the_reference_of_its_beginning(model_dir: Path) -> None:
    trainer = InThisProcess(model_dir)
    objective = Preference(SETTINGS, PAIRS, dpo=DPO(beta=0.5))
    reference = await objective.prepare(trainer, [])
    await objective.learn(trainer, range(4))
    again = Preference(SETTINGS, PAIRS, dpo=DPO(beta=0.5))
    assert await again.prepare(trainer, reference) is reference
    assert (await again.learn(trainer, range(4)))["loss"] < 0.69


async def test_a_reward_model_learns_pairs_and_has_no_reference(model_dir: Path) -> None:
    trainer = InThisProcess(model_dir, learns_rewards=True)
    objective = RewardModelling(SETTINGS, PAIRS, PAIRS)
    assert await objective.prepare(trainer, []) == []
    assert (await objective.measure(trainer))["accuracy"] == 0.5
    await losses(objective, trainer, steps=5)
    assert (await objective.measure(trainer))["accuracy"] == 1.0


async def test_imitation_measures_the_mean_over_tokens(model_dir: Path) -> None:
    trainer = InThisProcess(model_dir)
    rows = [pair.chosen for pair in PAIRS]
    objective = Imitation(SETTINGS, rows, [*rows, replace(rows[0], loss_mask=(False,) * 4)])
    measured = (await objective.measure(trainer))["loss"]
    assert (await objective.learn(trainer, range(4)))["loss"] == pytest.approx(measured, rel=1e-5)
    assert await Imitation(SETTINGS, rows).measure(trainer) == {}
