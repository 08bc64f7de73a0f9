"""`RayLauncher`: a Ray cluster finds the machines; the processes connect to this one."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from areal_sdk.errors import ChildDiedError, ConfigError, ProcessError, raised_here
from areal_sdk.launcher import (
    START_TIMEOUT_S,
    TOKEN_VARIABLE,
    Child,
    Client,
    LauncherSetup,
    Listener,
    ProcessSpec,
    Starter,
    rank_environment,
    spawn,
    split_address,
    waiting,
)
from areal_sdk_ray.placing import Placing, Room, Start, Wanted

R = TypeVar("R")

DRIVER = "areal_sdk_ray.driver:main"
DRIVER_START_S = 120.0
"""Seconds for the driver to join the cluster."""
ANSWER_S = 300.0
"""Seconds for an answer of the driver; finding room has a deadline of its own."""
WORKER_START_S = 300.0
"""Seconds that Ray may take to reserve room that is free, and then to start a Python process for
each host: minutes, on a crowded machine."""
SLACK_S = 30.0
"""Seconds that the launcher waits longer than its driver, so that the driver's error is raised."""
CONNECT_S = 90.0
"""Seconds for the processes of a job to connect, once their hosts run."""


async def open_ray(setup: LauncherSetup) -> "RayLauncher":
    """Connect to the cluster. ConfigError if there is none."""
    cluster = setup.cluster
    spec = ProcessSpec(
        "driver",
        DRIVER,
        {"address": cluster.address, "run": setup.run},
        env={
            "RAY_ENABLE_AUTO_CONNECT": "0",  # what still waits at the end must not connect again
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a process that asks for no GPU may see them
        },
    )
    with raised_here(ConfigError):
        driver = await spawn(spec, log_dir=setup.log_dir, start_timeout_s=DRIVER_START_S)
    host = cluster.listen_host or driver.hello["address"]
    try:
        listener = await Listener.open(host, cluster.listen_port)
    except BaseException:
        await driver.kill()
        raise
    return RayLauncher(
        driver,
        listener,
        log_dir=setup.log_dir,
        placement_timeout_s=cluster.placement_timeout_s,
    )


class RayLauncher:
    """Places each job wherever the cluster has room, its processes close together."""

    def __init__(
        self, driver: Child, listener: Listener, *, log_dir: Path, placement_timeout_s: float
    ) -> None:
        self._driver = driver
        self._placing = Client[Placing](driver)
        self._listener = listener
        self.host = split_address(listener.address)[0]
        self._log_dir = log_dir
        self._placement_timeout_s = placement_timeout_s
        self._background: set[asyncio.Task[None]] = set()

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        job = f"{specs[0].role}-{secrets.token_hex(3)}"
        try:
            nodes = await self._place(job, specs, timeout_s=self._placement_timeout_s)
            starters = await self._start(job, specs)
            children = await self._accept(job, with_ranks(specs, nodes), starters)
        except BaseException:
            await self._free(job)
            raise
        everyone = asyncio.gather(*(asyncio.shield(child.exited) for child in children))
        everyone.add_done_callback(lambda _: self._begin(self._free(job), name=f"free {job}"))
        return children

    async def has_room(self, specs: Sequence[ProcessSpec], *, timeout_s: float) -> bool:
        """Whether all of `specs` find room within `timeout_s`. None is started, and the room is given back."""
        job = f"room-{secrets.token_hex(3)}"
        try:
            await self._place(job, specs, timeout_s=timeout_s)
        except ProcessError:
            return False
        finally:
            await self._free(job)
        return True

    async def shortage(self, specs: Sequence[ProcessSpec]) -> str:
        """The reason why the cluster could never hold all of `specs` together, whoever uses it now;
        empty if it could."""
        return await _raising(
            self._placing.call(Placing.shortage, _wanted(specs), timeout_s=ANSWER_S)
        )

    async def aclose(self) -> None:
        """Leave the cluster: it ends what is still there of the run."""
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._listener.aclose()
        await self._driver.aclose(grace_s=10.0)

    async def _place(
        self, job: str, specs: Sequence[ProcessSpec], *, timeout_s: float
    ) -> Sequence[Room]:
        """Reserve room for all `specs`, close together, and put a host there for each."""
        names = ", ".join(spec.name for spec in specs)
        call, start_s = self._placing.call, WORKER_START_S
        async with waiting(f"Ray: room for {names}", timeout_s=timeout_s, slack_s=SLACK_S):
            asked = (job, _wanted(specs), timeout_s)
            is_reserved = await _raising(
                call(Placing.reserve, *asked, timeout_s=timeout_s + SLACK_S)
            )
        if not is_reserved:
            what = f"Ray: its nodes to reserve free room for {names}"
            async with waiting(what, timeout_s=start_s, slack_s=SLACK_S):
                await _raising(call(Placing.reserved, job, start_s, timeout_s=start_s + SLACK_S))
        what = f"Ray: a worker to start for {names}"
        async with waiting(what, timeout_s=start_s, slack_s=SLACK_S):
            return await _raising(call(Placing.host, job, start_s, timeout_s=start_s + SLACK_S))

    async def _start(self, job: str, specs: Sequence[ProcessSpec]) -> Mapping[str, Starter]:
        processes = {
            spec.name: Start(
                (self._listener.address, _joined_name(spec, job)),
                # Threads are set before Python starts: numpy reads them when it is imported.
                {**spec.environment(), TOKEN_VARIABLE: self._listener.token},
                str(self._log_dir.absolute() / f"{spec.name}.log"),
            )
            for spec in specs
        }
        logs = await _raising(self._placing.call(Placing.start, job, processes, timeout_s=ANSWER_S))
        return {
            _joined_name(spec, job): Starter(
                Path(logs[spec.name]), partial(self._signal, job, spec.name)
            )
            for spec in specs
        }

    async def _accept(
        self, job: str, specs: Sequence[ProcessSpec], starters: Mapping[str, Starter]
    ) -> list[Child]:
        """The started processes; ChildDiedError as soon as one of them ends instead."""
        joining = asyncio.create_task(
            self._listener.accept(
                {_joined_name(spec, job): spec for spec in specs},
                timeout_s=CONNECT_S,
                start_timeout_s=START_TIMEOUT_S,
                starters=starters,
            )
        )
        ending = asyncio.create_task(
            _raising(self._placing.call(Placing.first_exit, job, timeout_s=START_TIMEOUT_S * 2))
        )
        try:
            await asyncio.wait({joining, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done() and not ending.exception():
                # A process that failed to start says so over its connection: that error is the better one.
                await asyncio.wait({joining}, timeout=1.0)
                if not joining.done():
                    raise ChildDiedError(ending.result())
            return await joining
        finally:
            for task in (joining, ending):
                task.cancel()
            await asyncio.gather(joining, ending, return_exceptions=True)

    async def _free(self, job: str) -> None:
        with contextlib.suppress(ProcessError):  # a driver that is gone has freed everything
            await _raising(self._placing.call(Placing.free, job, timeout_s=ANSWER_S))

    def _signal(self, job: str, name: str, number: int) -> None:
        async def send() -> None:
            with contextlib.suppress(ProcessError):
                sent = self._placing.call(Placing.signal, job, name, number, timeout_s=ANSWER_S)
                await _raising(sent)

        self._begin(send(), name=f"signal {name}")

    def _begin(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Keep a task that nobody awaits until it ends, or until the launcher is closed."""
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _raising(call: Awaitable[R]) -> R:
    """The answer of the driver. A ProcessError of the driver is raised as one of this process."""
    with raised_here(ProcessError):
        return await call


def _wanted(specs: Sequence[ProcessSpec]) -> tuple[Wanted, ...]:
    return tuple(Wanted(spec.name, spec.reserves.cpus, spec.reserves.gpus) for spec in specs)


def with_ranks(specs: Sequence[ProcessSpec], nodes: Sequence[Room]) -> list[ProcessSpec]:
    """`specs` with the variables that torch.distributed reads. Rank 0's node is the master."""
    placed = []
    for rank, (spec, node) in enumerate(zip(specs, nodes, strict=True)):
        before = [other.address for other in nodes[:rank]].count(node.address)
        env = rank_environment(
            rank,
            len(specs),
            master=nodes[0].address,
            port=nodes[0].port,
            # Ray shows each process only its own GPUs: its first one is its own.
            local_rank=0 if node.gpus else before,
            local_world_size=1 if node.gpus else len(specs),
        )
        placed.append(replace(spec, env={**env, **spec.env}))
    return placed


def _joined_name(spec: ProcessSpec, job: str) -> str:
    """The name under which the process connects. It differs with each job, so that an old process
    that comes back after its node was cut off is not taken for its successor."""
    return f"{spec.name}@{job}"
