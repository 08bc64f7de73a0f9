"""How many trainer ranks a run has: fewer where the cluster has lost room, all again when it has room (`trainer.min_ranks`)."""

from collections.abc import Callable
from dataclasses import dataclass

from areal_sdk.config import Config
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.launch import FindsRoom, Launcher
from areal_sdk.process import ProcessSpec
from areal_sdk.process.spec import Reservation, gpus_of

LOOK_S = 5.0
"""How long a checkpoint waits for an answer whether there is room for all ranks again."""


class RanksChange(ArealError):
    """Ends the services of a run, which goes on from its last checkpoint with another number of ranks."""


@dataclass(frozen=True, slots=True)
class TrainerRanks:
    """The ranks of the trainer as it was started."""

    num: int
    missing: int
    """So many fewer than `trainer.ranks`."""
    config: Config
    launcher: Launcher

    async def change(self) -> RanksChange | None:
        """How the run gets the missing ranks, if there is room for them now."""
        if not self.missing or not await _has_room(
            self.config, self.launcher, self.missing, timeout_s=LOOK_S
        ):
            return None
        return RanksChange(
            f"there is room for {self.config.trainer.ranks} trainer ranks again, {self.num} are in use"
        )


def is_elastic(config: Config) -> bool:
    return len(config.trainer.rank_counts) > 1


def with_ranks(config: Config, num: int) -> Config:
    """The settings of a trainer of `num` ranks."""
    trainer = config.trainer.model_copy(update={"ranks": num})
    return config.model_copy(update={"trainer": trainer})


def check_finds_room(config: Config, launcher: Launcher) -> None:
    """ConfigError where the launcher cannot say whether there is room."""
    if not isinstance(launcher, FindsRoom):
        raise ConfigError(
            f"trainer.min_ranks: the launcher {config.cluster.launcher!r} has no room to lose or to find; "
            'leave min_ranks out, or set cluster.launcher = "ray"'
        )


async def choose_ranks(
    config: Config, launcher: Launcher, *, say: Callable[[str], None]
) -> TrainerRanks:
    """The largest number of ranks that may be and for which there is room now; all where there is room for none.

    The engine must have its place already. The rollout nodes get theirs later.
    """
    most = config.trainer.ranks
    nodes = config.rollout.nodes if config.rollout.nodes > 1 else 0
    for num in config.trainer.rank_counts:
        timeout_s = config.cluster.placement_timeout_s
        if await _has_room(config, launcher, num, nodes=nodes, timeout_s=timeout_s):
            if num < most:
                say(
                    f"warning: the cluster has room for {num} of {most} trainer ranks (trainer.min_ranks): the run takes "
                    "all of them at a checkpoint when there is room"
                )
            return TrainerRanks(num, most - num, config, launcher)
    return TrainerRanks(most, 0, config, launcher)  # its start says what is missing


async def _has_room(
    config: Config, launcher: Launcher, num: int, *, nodes: int = 0, timeout_s: float
) -> bool:
    assert isinstance(launcher, FindsRoom)
    trainer = config.trainer
    rank = Reservation(trainer.threads, gpus_of(trainer.device))
    wanted = [*[rank] * num, *[Reservation()] * nodes]
    specs = [
        ProcessSpec(f"room-{index}", "", reserves=reserves) for index, reserves in enumerate(wanted)
    ]
    return await launcher.has_room(specs, timeout_s=timeout_s)
