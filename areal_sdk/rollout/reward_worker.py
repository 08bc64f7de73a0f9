"""The entries of the processes that run reward functions.

`main` scores one episode after another, so a reward that blocks or crashes there harms no other episode. `share`
scores many at once, on an event loop, for rewards that mostly wait.
"""

import asyncio
import contextlib
import inspect
import pickle
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from areal_sdk.errors import DeadlineError, InfrastructureError
from areal_sdk.plugins import load_plugins
from areal_sdk.process import JSON, Channel, ChannelClosedError, Request, clean_text
from areal_sdk.process.pools.workers import IDLE
from areal_sdk.process.user_code import REGISTERED, load_user_object
from areal_sdk.rollout.verdicts import read_verdict
from areal_sdk.types import Episode, ErrorKind, Outcome, OutcomeKind

WORKER = "areal_sdk.rollout.reward_worker:main"
SHARED_WORKER = "areal_sdk.rollout.reward_worker:share"

LOOK_EVERY_S = 0.1
"""Interval at which a worker checks whether the reward that it awaits was cancelled."""

LoadedReward = Callable[..., Any]


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """The entry of a worker that scores one episode after another."""
    rewards = _load(args)
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
            except InfrastructureError as exc:  # the pool raises it again
                traceback.print_exc()
                request.reply(_write(Outcome.failed(ErrorKind.INFRASTRUCTURE, str(exc))))
            except Exception as exc:  # noqa: BLE001 - the pool raises it as RewardError
                traceback.print_exc()
                request.fail(exc)
            else:
                request.reply(_write(outcome))


def share(channel: Channel, args: Mapping[str, JSON]) -> None:
    """The entry of the worker that scores many episodes at once, with rewards that await."""
    rewards = _load(args)
    channel.ready()
    with asyncio.Runner() as runner:
        runner.run(_serve(channel, rewards, timeout_s=args["timeout_s"]))


async def _serve(channel: Channel, rewards: Sequence[LoadedReward], *, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Request | None] = asyncio.Queue()

    def receive() -> None:  # in a thread: `receive` blocks
        request: Request | None
        while True:
            try:
                request = channel.receive()
            except ChannelClosedError:
                request = None
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(arrived.put_nowait, request)
            if request is None:
                return

    threading.Thread(target=receive, name="reward-worker receiver", daemon=True).start()
    judging: set[asyncio.Task[None]] = set()
    while (request := await arrived.get()) is not None:
        reward = rewards[request.payload["reward"]]
        task = loop.create_task(_judge(reward, request, timeout_s))
        judging.add(task)
        task.add_done_callback(judging.discard)
    for task in judging:
        task.cancel()


async def _judge(reward: LoadedReward, request: Request, timeout_s: float) -> None:
    """Answer one request, whatever the reward does; what it raises is the caller's to attribute."""
    deadline = asyncio.timeout(timeout_s)
    try:
        episode = _unpacked(request.buffers[0])
        async with deadline:
            verdict = await _unless_cancelled(reward(episode), request)
        outcome = _checked(verdict, episode)
    except InfrastructureError as exc:
        traceback.print_exc()
        request.reply(_write(Outcome.failed(ErrorKind.INFRASTRUCTURE, str(exc))))
    except Exception as exc:  # noqa: BLE001 - the pool raises it as RewardError
        traceback.print_exc()
        is_late = isinstance(exc, TimeoutError) and deadline.expired()
        request.fail(DeadlineError(f"no verdict within {timeout_s:g} s") if is_late else exc)
    except asyncio.CancelledError:
        if not request.cancelled and not request.channel.is_closed:
            request.fail(RuntimeError("it cancelled its own task"))
    else:
        request.reply(_write(outcome))


def _load(args: Mapping[str, JSON]) -> list[LoadedReward]:
    """`args["rewards"]` has a reference and options for each reward; None for those of other workers."""
    return [
        _of_other_workers
        if spec is None
        else partial(load_reward(spec["reference"]), **spec["options"])
        for spec in args["rewards"]
    ]


def load_reward(reference: str) -> LoadedReward:
    """A function by file and name, or the one that a plugin of this environment registers."""
    if reference.startswith(REGISTERED):
        plugins = load_plugins()
        reward: LoadedReward = plugins.rewards.get(reference.removeprefix(REGISTERED))
        return reward
    return cast(LoadedReward, load_user_object(reference))


def _of_other_workers(episode: Episode) -> None:
    raise AssertionError("asked of the wrong worker")


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
    return _checked(verdict, episode)


def _checked(verdict: Any, episode: Episode) -> Outcome:
    outcome = read_verdict(verdict, episode)
    if outcome.kind is OutcomeKind.ERROR:
        raise RuntimeError(outcome.message or "it returned an error")
    return outcome


async def _unless_cancelled(verdict: Awaitable[Any], request: Request) -> Any:
    """The awaited verdict. It is cancelled when the request is."""
    judging = asyncio.create_task(_wait_for(verdict))
    try:
        while not (await asyncio.wait({judging}, timeout=LOOK_EVERY_S))[0]:
            if request.cancelled:
                judging.cancel()
    finally:
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
