"""One trainer for each trained policy. Each gets the trajectories of its own policy, and knows of no other."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.records import begin_directory, commit_directory
from areal_sdk.trainer import (
    Demonstration,
    Learning,
    Trainer,
    TrainerInfo,
    TrainerSetup,
)
from areal_sdk.trajectory import TrajectoryGroup
from areal_sdk.types import WeightUpdate
from areal_sdk_policies.calls import all_results, first_result
from areal_sdk_policies.shares import least_idle, merged, merged_credit, split

JSON = Any


def make_trainer(setup: TrainerSetup) -> Trainer:
    """The trainer of a run with several policies, with one of `trainer.name` for each that is not frozen."""
    if setup.learning is not Learning.EPISODES or setup.make is None or not setup.policies:
        raise ConfigError(
            "several policies learn from episodes: give each a table [policy.NAME], and use areal-sdk train"
        )
    return PolicyTrainer(
        {
            name: setup.make(_setup_of(name, setup, policy.learning_rate))
            for name, policy in setup.policies.items()
            if policy.frozen is None
        }
    )


def _setup_of(name: str, setup: TrainerSetup, learning_rate: float | None) -> TrainerSetup:
    trainer = setup.trainer
    if learning_rate is not None:
        trainer = trainer.model_copy(update={"learning_rate": learning_rate})
    return replace(
        setup,
        trainer=trainer,
        log_dir=setup.log_dir / name,
        say=lambda line: setup.say(f"{name}: {line}"),
        launcher=None,
        engine_accepts=("all",),
        policies={},
        make=None,
    )


class PolicyTrainer(Trainer):
    """The trainers of a run's policies. A checkpoint of the run holds one of each, in a folder of the policy's name."""

    def __init__(self, trainers: Mapping[str, Trainer]) -> None:
        """`trainers` by the names of their policies, not started."""
        self._trainers = dict(trainers)

    async def start(self) -> None:
        await all_results({name: trainer.start() for name, trainer in self._trainers.items()})

    @property
    def info(self) -> TrainerInfo:
        infos = [trainer.info for trainer in self._trainers.values()]
        return TrainerInfo(
            sum(info.num_parameters for info in infos),
            infos[0].device,
            all(info.learns_alone for info in infos),
            least_idle({info.idle_groups for info in infos}),
            policies=tuple(self._trainers),
        )

    async def step(
        self, groups: Sequence[TrajectoryGroup], *, version: int, timeout_s: float
    ) -> Mapping[str, float]:
        """The steps of all policies that took a turn, side by side."""
        shares = {name: share for name, share in split(groups, self._trainers).items() if share}
        metrics = await all_results(
            {
                name: self._trainers[name].step(share, version=version, timeout_s=timeout_s)
                for name, share in shares.items()
            }
        )
        stepped = {name: self._trainers[name] for name in shares}
        self.notices = [f"{name}: {line}" for name, t in stepped.items() for line in t.notices]
        self.credit = merged_credit([trainer.credit for trainer in stepped.values()])
        return merged(metrics)

    async def learn(
        self,
        rows: Sequence[Demonstration],
        *,
        learning_rate: float,
        divisor: float | None = None,
        timeout_s: float = 600.0,
    ) -> Mapping[str, float]:
        """A warm-up is of every policy."""
        learn = {
            name: trainer.learn(
                rows, learning_rate=learning_rate, divisor=divisor, timeout_s=timeout_s
            )
            for name, trainer in self._trainers.items()
        }
        return merged(await all_results(learn))

    async def publish(self, version: int) -> WeightUpdate:
        updates = await all_results({n: t.publish(version) for n, t in self._trainers.items()})
        seen = [u.share_seen for u in updates.values() if u.share_seen is not None]
        return WeightUpdate(version, None, share_seen=min(seen, default=None), by_policy=updates)

    async def save(self, directory: Path, extra: Mapping[str, JSON]) -> None:
        await (await self.begin_save(directory, extra))

    async def begin_save(
        self, directory: Path, extra: Mapping[str, JSON]
    ) -> "asyncio.Future[None]":
        partial_dir = begin_directory(directory)
        begun = {n: t.begin_save(partial_dir / n, extra) for n, t in self._trainers.items()}
        written = await all_results(begun)

        async def finish() -> None:
            await asyncio.gather(*written.values())
            await asyncio.to_thread(commit_directory, directory)

        return asyncio.create_task(finish(), name=f"policies: write {directory.name}")

    async def load(self, directory: Path) -> Mapping[str, JSON]:
        missing = [name for name in self._trainers if not (directory / name).is_dir()]
        if missing:
            raise ConfigError(
                f"{directory} holds no policy {', '.join(map(repr, missing))}: a run goes on with the policies that it "
                "began with"
            )
        extras = await all_results({n: t.load(directory / n) for n, t in self._trainers.items()})
        return next(iter(extras.values()))

    async def roll_back(self, directory: Path) -> None:
        await all_results({n: t.roll_back(directory / n) for n, t in self._trainers.items()})

    async def export(self, directory: Path) -> None:
        """Write a directory with a model for each policy."""
        partial_dir = begin_directory(directory)
        await all_results({n: t.export(partial_dir / n) for n, t in self._trainers.items()})
        await asyncio.to_thread(commit_directory, directory)

    def export_checkpoint(self, checkpoint: Path, directory: Path) -> None:
        partial_dir = begin_directory(directory)
        for name, trainer in self._trainers.items():
            trainer.export_checkpoint(checkpoint / name, partial_dir / name)
        commit_directory(directory)

    async def aclose(self) -> None:
        await asyncio.gather(*(trainer.aclose() for trainer in self._trainers.values()))

    async def release_memory(self) -> None:
        await all_results({n: t.release_memory() for n, t in self._trainers.items()})

    @property
    def is_alive(self) -> bool:
        return all(trainer.is_alive for trainer in self._trainers.values())

    async def died(self) -> ArealError:
        return await first_result(trainer.died() for trainer in self._trainers.values())

    @property
    def pids(self) -> Mapping[str, int]:
        return {
            f"{policy}-{name}": pid
            for policy, trainer in self._trainers.items()
            for name, pid in trainer.pids.items()
        }
