"""The number of trainer ranks that a run takes, of a cluster with a given amount of room."""

from collections.abc import Sequence
from typing import Any

import pytest

from areal_sdk.config import Config, parse_config
from areal_sdk.loop.services.elastic import LOOK_S, TrainerRanks, choose_ranks
from areal_sdk.process import Child, ProcessSpec


class Room:
    """A launcher whose machines have places for `num` more processes."""

    host = "127.0.0.1"

    def __init__(self, num: int) -> None:
        self.num = num
        self.asked: list[int] = []
        self.waited_s = 0.0
        """Seconds that refusals took. On a cluster whose places others hold, each refusal takes its
        whole time."""

    async def has_room(self, specs: Sequence[ProcessSpec], *, timeout_s: float) -> bool:
        self.asked.append(len(specs))
        if len(specs) <= self.num:
            return True
        self.waited_s += timeout_s
        return False

    async def shortage(self, specs: Sequence[ProcessSpec]) -> str:
        return ""

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        raise AssertionError("nothing is started to find room")

    async def aclose(self) -> None: ...


def settings(**trainer: int) -> Config:
    return parse_config({"trainer": trainer, "cluster": {"placement_timeout_s": 60.0}})


EIGHT: dict[str, Any] = {"ranks": 8, "min_ranks": 1}


@pytest.mark.parametrize(
    ("trainer", "num", "room", "expected"),
    [
        (EIGHT, 2, 100, 8),
        (EIGHT, 2, 6, 8),
        (EIGHT, 2, 5, 7),
        (EIGHT, 2, 3, 5),
        (EIGHT, 2, 1, 3),
        (EIGHT, 2, 0, None),
        (EIGHT, 7, 1, 8),
        (EIGHT, 8, 9, None),
        ({**EIGHT, "sequence_ranks": 4}, 4, 3, None),
        ({**EIGHT, "replicas": 2}, 2, 3, 4),
        ({"ranks": 512, "min_ranks": 1}, 1, 76, 77),
    ],
)
async def test_a_checkpoint_takes_the_largest_number_with_room_beside_the_ranks_in_use(
    trainer: dict[str, int], num: int, room: int, expected: int | None
) -> None:
    launcher = Room(room)
    change = await TrainerRanks(num, settings(**trainer), launcher).change()
    assert (change and change.num) == expected
    assert launcher.waited_s <= LOOK_S + 1e-6
    if change:
        told = f"room for {expected} of {trainer['ranks']} trainer ranks now, {num} are in use"
        assert told in str(change)
        assert launcher.asked[0] == trainer["ranks"] - num, "all are asked for first"
        assert len(launcher.asked) <= 10


@pytest.mark.parametrize(("room", "expected"), [(9, 8), (8, 8), (7, 7), (3, 3), (1, 1), (0, 8)])
async def test_a_start_waits_for_all_ranks_and_then_as_long_for_fewer(
    room: int, expected: int
) -> None:
    launcher, said = Room(room), list[str]()
    ranks = await choose_ranks(settings(**EIGHT), launcher, most=None, say=said.append)
    assert ranks.num == expected
    assert launcher.waited_s <= 2 * 60 + 1e-6
    assert bool(said) == (expected < 8)


async def test_a_start_takes_what_a_checkpoint_found_and_does_not_wait_for_more() -> None:
    launcher, said = Room(4), list[str]()
    ranks = await choose_ranks(settings(**EIGHT), launcher, most=4, say=said.append)
    assert ranks.num == 4
    assert launcher.waited_s == 0
    assert "room for 4 of 8 trainer ranks" in said[0]

    launcher.num = 2  # others were faster
    assert (await choose_ranks(settings(**EIGHT), launcher, most=4, say=said.append)).num == 2
    launcher.num = 6
    assert (change := await ranks.change()) is not None
    assert change.num == 8, "what is missing is counted from all ranks"
