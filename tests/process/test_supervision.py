"""Lost workers are replaced; a child that dies too often is given up."""

import asyncio
from pathlib import Path

import pytest

from areal_sdk.errors import ChildDiedError
from areal_sdk.process.pools.supervision import RestartPolicy, Restarts, Slots


class Nursery:
    """Starts numbered workers; those in `lost` are lost, and those after `last` do not start."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 100
        self.lost: set[int] = set()

    async def start(self, index: int) -> int:
        await asyncio.sleep(0)
        self.count += 1
        if self.count > self.last:
            raise OSError("no memory")
        return self.count

    def slots(self, size: int) -> Slots[int]:
        return Slots(size, start=self.start, is_lost=self.lost.__contains__, name="worker")


async def test_a_lost_worker_is_replaced_and_the_others_stay() -> None:
    nursery = Nursery()
    slots = nursery.slots(2)
    await slots.start()
    assert slots.workers == [1, 2]
    nursery.lost.add(1)
    assert slots.workers == [2]
    assert await slots.worker(0) == 3
    assert slots.workers == [3, 2]
    assert slots.num_started == 3
    assert await slots.aclose() == [3, 2]


async def test_who_waits_for_any_worker_learns_why_none_starts() -> None:
    nursery = Nursery()
    slots = nursery.slots(2)
    await slots.start()
    nursery.lost |= {1, 2}
    nursery.last = 2
    with pytest.raises(OSError, match="no memory"):
        await slots.some()
    nursery.last = 100
    assert await slots.some()  # the next one tries again
    await slots.aclose()


async def test_a_waiter_whose_places_are_closed_gets_no_worker() -> None:
    nursery = Nursery()
    slots = nursery.slots(1)
    await slots.start()
    nursery.lost.add(1)
    waiting = asyncio.create_task(slots.some())
    await asyncio.sleep(0)
    await slots.aclose()
    assert await waiting == []


def test_restarts_back_off_and_give_up(tmp_path: Path) -> None:
    restarts = Restarts(RestartPolicy(max_restarts=3, window_s=100.0, first_pause_s=1.0))
    death = "engine was killed by SIGKILL"

    def pause_after(at: float) -> float:
        return restarts.pause_after(death, log_path=tmp_path / "log", now=at)

    assert [pause_after(at) for at in (0.0, 10.0, 20.0)] == [1.0, 2.0, 4.0]
    with pytest.raises(ChildDiedError, match=r"engine was killed by SIGKILL 4 times in 100 s; log"):
        pause_after(30.0)
    assert pause_after(200.0) == 1.0  # the old deaths are forgotten
    with pytest.raises(ChildDiedError, match=r"engine was killed by SIGKILL; log"):
        Restarts(RestartPolicy(max_restarts=0)).pause_after(death, log_path=tmp_path)


def test_a_child_that_got_well_again_may_die_as_often_as_before(tmp_path: Path) -> None:
    restarts = Restarts(RestartPolicy(max_restarts=1, window_s=float("inf")))
    restarts.pause_after("it died", log_path=tmp_path)
    restarts.forget()
    restarts.pause_after("it died", log_path=tmp_path)
    with pytest.raises(ChildDiedError, match="it died 2 times; log"):
        restarts.pause_after("it died", log_path=tmp_path)
