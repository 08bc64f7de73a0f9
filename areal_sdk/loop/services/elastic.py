"""The number of a run's trainer ranks: fewer if the cluster has lost room, more again when it has
room (`trainer.min_ranks`)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from areal_sdk.config import Config
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.launcher import FindsRoom, Launcher
from areal_sdk.process import ProcessSpec
from areal_sdk.process.spec import Reservation, gpus_of

LOOK_S = 5.0
"""Seconds, in all, for which a run looks for more ranks at a checkpoint."""


class RanksChange(ArealError):
    """Ends the services of a run, which goes on from its last checkpoint with `num` ranks."""

    def __init__(self, message: str, num: int) -> None:
        super().__init__(message)
        self.num = num


@dataclass(frozen=True, slots=True)
class TrainerRanks:
    """The ranks of the trainer as it was started."""

    num: int
    config: Config
    launcher: Launcher

    async def change(self) -> RanksChange | None:
        """The change to more ranks: to the largest number for which there is room now; None if there is none."""
        most = self.config.trainer.ranks
        larger = [count for count in self.config.trainer.rank_counts if count > self.num]

        async def has_room(count: int, timeout_s: float) -> bool:
            missing = count - self.num
            return await _has_room(self.config, self.launcher, missing, timeout_s=timeout_s)

        num = await _largest(larger, has_room, timeout_s=LOOK_S)
        if num is None:
            return None
        return RanksChange(
            f"there is room for {num} of {most} trainer ranks now, {self.num} are in use", num
        )


def is_elastic(config: Config) -> bool:
    return len(config.trainer.rank_counts) > 1


def with_ranks(config: Config, num: int) -> Config:
    """The settings of a trainer of `num` ranks."""
    trainer = config.trainer.model_copy(update={"ranks": num})
    return config.model_copy(update={"trainer": trainer})


def check_finds_room(config: Config, launcher: Launcher) -> None:
    """Raise ConfigError if the launcher cannot say whether there is room."""
    if not isinstance(launcher, FindsRoom):
        raise ConfigError(
            f"trainer.min_ranks: the launcher {config.cluster.launcher!r} has no room to lose or to find; "
            'leave min_ranks out, or set cluster.launcher = "ray"'
        )


async def choose_ranks(
    config: Config, launcher: Launcher, *, most: int | None, say: Callable[[str], None]
) -> TrainerRanks:
    """The largest allowed number of ranks for which there is room. Without room for any allowed number, all ranks.

    `most` is the number for which there was room when the run ended its processes in order to grow. The engine must
    have its place already. The rollout nodes get theirs later.
    """
    ranks, timeout_s = config.trainer.ranks, config.cluster.placement_timeout_s
    nodes = config.rollout.nodes if config.rollout.nodes > 1 else 0

    async def has_room(count: int, timeout_s: float) -> bool:
        return await _has_room(config, launcher, count, nodes=nodes, timeout_s=timeout_s)

    first, *fewer = [count for count in config.trainer.rank_counts if count <= (most or ranks)]
    num: int | None = first
    if not await has_room(first, timeout_s):
        num = await _largest(fewer, has_room, timeout_s=timeout_s)
    if num is None:
        return TrainerRanks(ranks, config, launcher)  # its start says what is missing
    if num < ranks:
        say(
            f"warning: the cluster has room for {num} of {ranks} trainer ranks (trainer.min_ranks): the run takes "
            "more at a checkpoint when there is room"
        )
    return TrainerRanks(num, config, launcher)


async def _largest(
    counts: Sequence[int], has_room: Callable[[int, float], Awaitable[bool]], *, timeout_s: float
) -> int | None:
    """The largest of `counts` for which there is room, found within `timeout_s`. `counts` has the largest first.

    After the largest, each question halves the rest, because room for some ranks is room for fewer. Asking for each
    number would take too long for a run of many ranks.
    """
    share_s = timeout_s / (1 + (len(counts) - 1).bit_length())
    found, index = None, 0
    while counts:
        if await has_room(counts[index], share_s):
            found, counts = counts[index], counts[:index]
        else:
            counts = counts[index + 1 :]
        index = len(counts) // 2
    return found


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
