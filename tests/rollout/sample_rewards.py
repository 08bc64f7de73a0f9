"""Reward functions of every temperament, for the worker pool to load by file."""

import asyncio
import os
import sys
import time
from pathlib import Path

import numpy as np

from areal_sdk.errors import EpisodeError, InfrastructureError
from areal_sdk.types import Episode, Outcome


def length(episode: Episode, *, per_word: float = 1.0) -> float:
    return per_word * len(episode.final_text.split())


def is_there(episode: Episode, *, file: Path) -> bool:
    return file.with_name(episode.final_text) == file


async def slowly(episode: Episode) -> bool:
    await asyncio.sleep(0.001)
    return episode.final_text == "yes"


async def in_a_second(episode: Episode) -> float:
    await asyncio.sleep(1.0)
    return 1.0


def per_turn(episode: Episode) -> list[float | None]:
    return [0.5, *[None] * (len(episode.turns) - 1)]


def whole(episode: Episode) -> Outcome:
    return Outcome.scored(0.25, success=True, metrics={"checks": 3})


def numpy_scalar(episode: Episode) -> np.float32:
    return np.float32(0.5)


def none(episode: Episode) -> None:
    return None


def nan(episode: Episode) -> float:
    return float("nan")


def numpy_success(episode: Episode) -> Outcome:
    right = np.array([1, 2]) == 1
    return Outcome.scored(0.5, success=right[0], metrics={"half \ud800": float(np.float32(1))})


def raises_half_a_character(episode: Episode) -> float:
    raise ValueError("half \ud800")


def raises(episode: Episode) -> float:
    raise KeyError("answer")


def text(episode: Episode) -> str:
    return "good"


def hangs(episode: Episode) -> float:
    while True:
        time.sleep(0.01)


def crashes(episode: Episode) -> float:
    os._exit(3)


def exits(episode: Episode) -> float:
    sys.exit(0)


async def meets(episode: Episode, *, me: str, other: str) -> float:
    """Ends when the other one runs."""
    directory = Path(episode.task.data["directory"])
    (directory / me).touch()
    while not (directory / other).exists():  # noqa: ASYNC110 - the other is in another process
        await asyncio.sleep(0.01)
    return 1.0


def worker_id(episode: Episode) -> float:
    return float(os.getpid())


async def when_released(episode: Episode) -> float:
    """Judges nobody until `release` lies in the directory that the task names, if it names one."""
    while _is_held(episode):  # noqa: ASYNC110 - who releases it is in another process
        await asyncio.sleep(0.01)
    return 1.0


def blocks_until_released(episode: Episode) -> float:
    while _is_held(episode):
        time.sleep(0.01)
    return 1.0


def _is_held(episode: Episode) -> bool:
    """Says in `judging` that it was asked."""
    if "directory" not in episode.task.data:
        return False
    directory = Path(episode.task.data["directory"])
    me = f"{os.getpid()}\n"
    said = directory / "judging"
    if not said.exists() or me not in said.read_text():
        with said.open("a") as file:
            file.write(me)
    return not (directory / "release").exists()


def has_no_sandbox(episode: Episode) -> float:
    raise InfrastructureError("no room for a sandbox")


async def meets_in_one_process(episode: Episode) -> float:
    """Waits until as many judgements as the task says are under way in this process."""
    _under_way.append(os.getpid())
    while len(_under_way) < episode.task.data["together"]:  # noqa: ASYNC110 - of other tasks
        await asyncio.sleep(0.001)
    return float(len(set(_under_way)))


_under_way: list[int] = []


async def awaits(episode: Episode) -> float:
    """Does what the task says, and answers 1.0 where it does nothing of it."""
    match episode.task.data.get("does"):
        case "blocks":
            time.sleep(60)  # noqa: ASYNC251 - the wrong thing on purpose
        case "crashes":
            os._exit(3)
        case "raises":
            raise KeyError("answer")
        case "hangs":
            await asyncio.Event().wait()
        case "has no machine":
            raise EpisodeError.infrastructure("no machine")
        case _:
            pass
    return 1.0
