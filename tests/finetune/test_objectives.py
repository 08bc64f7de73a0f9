"""Objectives over a real trainer in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import TrainerSection
from areal_sdk.errors import ConfigError
from areal_sdk.finetune.begun import BegunWith
from areal_sdk.finetune.objectives import FinetuneObjective, Imitation, Preference, RewardModelling
from areal_sdk.finetune.preferences import DPO
from areal_sdk.finetune.rendering import TokenPair
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.telemetry import RunDir
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
    """The parts of a trainer that the objectives need, without processes."""

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
    rows = range(len(objective.rows))
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


async def test_rows_that_changed_places_keep_their_reference(
    model_dir: Path, tmp_path: Path
) -> None:
    """The pairs, two of them equal, are turned round between others when the run goes on."""
    trainer, dpo, run_dir = InThisProcess(model_dir), DPO(beta=0.5), RunDir.create(tmp_path, "run")
    begun = Preference(SETTINGS, [*PAIRS, PAIRS[1]], PAIRS[:1], dpo=dpo)
    reference = await begun.prepare(trainer, [])
    assert len({tuple(scores) for scores in reference}) > 2
    BegunWith.of(begun, reference).write(run_dir)
    await begun.learn(trainer, range(4))
    new = TokenPair(answered("e", "yes"), answered("e", "no"))
    turned = Preference(SETTINGS, [new, *reversed(begun.rows), new], PAIRS[:1], dpo=dpo)
    found, note = BegunWith.read(run_dir).find_in(turned)
    assert list(found.rows) == [*PAIRS, PAIRS[1]]
    assert note is not None
    assert note.startswith(
        "2 rows of the data came after the beginning of the run, and are left out"
    )
    assert await found.prepare(trainer, BegunWith.read(run_dir).reference) == reference
    assert await found.measure(trainer) == await begun.measure(trainer)
    assert BegunWith.read(run_dir).find_in(begun)[1] is None


@pytest.mark.parametrize(
    ("kept", "held_out", "problem"),
    [
        (PAIRS[1:], PAIRS[:1], "1 of the 4 rows that the run began with are gone from its data"),
        (PAIRS, (), "1 of the 1 held-out rows that the run began with are gone"),
        ([PAIRS[0]] * 4, PAIRS[:1], "3 of the 4 rows"),
    ],
)
def test_a_run_does_not_go_on_without_a_row_that_it_began_with(
    kept: Sequence[TokenPair], held_out: Sequence[TokenPair], problem: str
) -> None:
    begun = BegunWith.of(RewardModelling(SETTINGS, PAIRS, PAIRS[:1]), [])
    with pytest.raises(ConfigError, match=problem):
        begun.find_in(RewardModelling(SETTINGS, kept, held_out))


def test_rows_differ_by_what_is_trained_of_them_and_where_their_halves_end() -> None:
    row = answered("ab", "cd")
    rows = [
        row,
        replace(row, loss_mask=(False, True, True, True)),
        answered("ab", "c"),
        answered("abc", "d"),
    ]
    pairs = [
        TokenPair(answered("a", "bc"), answered("a", "b")),
        TokenPair(answered("a", "b"), answered("a", "bc")),
    ]
    assert len({*BegunWith.of(Imitation(SETTINGS, rows), []).rows}) == 4
    assert len({*BegunWith.of(RewardModelling(SETTINGS, pairs), []).rows}) == 2


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
