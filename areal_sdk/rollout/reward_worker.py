"""The process that calls reward functions: loads them once, answers one episode after another."""

import asyncio
import inspect
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from areal_sdk.process import JSON, Channel, Request, clean_text
from areal_sdk.process.user_code import load_user_object
from areal_sdk.process.workers import IDLE
from areal_sdk.rollout.scoring import read_verdict
from areal_sdk.types import Episode, Outcome, OutcomeKind

LOOK_EVERY_S = 0.1
"""How soon a reward that awaits something is cancelled when its verdict is not wanted any more."""


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """The entry: `args["rewards"]` has a reference and options for each reward."""
    rewards = [
        partial(load_user_object(spec["reference"]), **spec["options"]) for spec in args["rewards"]
    ]
    channel.ready()
    with asyncio.Runner() as runner:
        while True:
            request = channel.receive()
            if request is None:
                continue
            if request.method == IDLE:
                request.reply()
                continue
            try:
                episode = _unpacked(request.buffers[0])
                outcome = _verdict(rewards[request.payload["reward"]], episode, runner, request)
            except asyncio.CancelledError:
                if not request.cancelled:
                    raise
            except Exception as exc:  # noqa: BLE001 - the boundary: it becomes a typed RewardError
                traceback.print_exc()
                request.fail(exc)
            else:
                request.reply(_write(outcome))


def _unpacked(episode: bytes | memoryview) -> Episode:
    try:
        return pickle.loads(episode)  # type: ignore[no-any-return]
    except Exception as exc:
        raise ValueError(
            f"the episode cannot be read in a worker ({type(exc).__name__}: {exc}): keep to plain "
            "values and importable classes in Task.data"
        ) from exc


def _verdict(
    reward: Callable[[Episode], object],
    episode: Episode,
    runner: asyncio.Runner,
    request: Request,
) -> Outcome:
    verdict: Any = reward(episode)
    if inspect.isawaitable(verdict):
        verdict = runner.run(_unless_cancelled(verdict, request))
    outcome = read_verdict(verdict, episode)
    if outcome.kind is OutcomeKind.ERROR:
        raise RuntimeError(outcome.message or "it returned an error")
    return outcome


async def _unless_cancelled(verdict: Awaitable[Any], request: Request) -> Any:
    """The verdict; once nobody waits for it any more, it is cancelled."""
    judging = asyncio.create_task(_wait_for(verdict))
    while not (await asyncio.wait({judging}, timeout=LOOK_EVERY_S))[0]:
        if request.cancelled:
            judging.cancel()
    return judging.result()


async def _wait_for(verdict: Awaitable[Any]) -> Any:
    return await verdict


def _write(outcome: Outcome) -> JSON:
    return {
        "kind": outcome.kind.value,
        "reward": None if outcome.reward is None else float(outcome.reward),
        "turn_rewards": [None if r is None else float(r) for r in outcome.turn_rewards],
        "success": None if outcome.success is None else bool(outcome.success),
        "metrics": {clean_text(str(name)): float(value) for name, value in outcome.metrics.items()},
        "message": clean_text(str(outcome.message)),
    }
