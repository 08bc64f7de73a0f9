"""`RayLauncher`: a Ray cluster finds the machines; the processes connect to this one."""

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from areal_sdk.errors import ChildDiedError, ConfigError, ProcessError, raised_here
from areal_sdk.launcher import (
    START_TIMEOUT_S,
    TOKEN_VARIABLE,
    Child,
    LauncherSetup,
    Listener,
    ProcessSpec,
    Starter,
    rank_environment,
    spawn,
    split_address,
    waiting,
)

JSON = Any

DRIVER = "areal_sdk_ray.driver:main"
DRIVER_START_S = 120.0
"""Seconds for the driver to join the cluster."""
ANSWER_S = 300.0
"""Seconds for an answer of the driver; finding room has a deadline of its own."""
WORKER_START_S = 300.0
"""Seconds that Ray may take to reserve room that is free, and then to start a Python process for
each host: minutes, on a crowded machine."""
SLACK_S = 30.0
"""The driver's error is the one that is raised."""
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
        missing: str = await self._ask("shortage", {"processes": _wanted(specs)})
        return missing

    async def aclose(self) -> None:
        """Leave the cluster: it ends what is still there of the run."""
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._listener.aclose()
        await self._driver.aclose(grace_s=10.0)

    async def _place(
        self, job: str, specs: Sequence[ProcessSpec], *, timeout_s: float
    ) -> Sequence[Mapping[str, JSON]]:
        """Reserve room for all `specs`, close together, and put a host there for each. Returns their nodes."""
        names = ", ".join(spec.name for spec in specs)

        async def ask(method: str, what: str, within_s: float, **payload: JSON) -> Any:
            async with waiting(f"Ray: {what}", timeout_s=within_s, slack_s=SLACK_S):
                asked = {"job": job, "timeout_s": within_s, **payload}
                return await self._ask(method, asked, timeout_s=within_s + SLACK_S)

        if not await ask("reserve", f"room for {names}", timeout_s, processes=_wanted(specs)):
            await ask("reserved", f"its nodes to reserve free room for {names}", WORKER_START_S)
        nodes: Sequence[Mapping[str, JSON]] = await ask(
            "host", f"a worker to start for {names}", WORKER_START_S
        )
        return nodes

    async def _start(self, job: str, specs: Sequence[ProcessSpec]) -> Mapping[str, Starter]:
        processes = {
            spec.name: {
                "arguments": [self._listener.address, _joined_name(spec, job)],
                # Threads are set before Python starts: numpy reads them when it is imported.
                "env": {**spec.environment(), TOKEN_VARIABLE: self._listener.token},
                "log": str(self._log_dir.absolute() / f"{spec.name}.log"),
            }
            for spec in specs
        }
        started = await self._ask("start", {"job": job, "processes": processes})
        return {
            _joined_name(spec, job): Starter(
                Path(started[spec.name]["log"]), partial(self._signal, job, spec.name)
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
            self._ask("first_exit", {"job": job}, timeout_s=START_TIMEOUT_S * 2)
        )
        try:
            await asyncio.wait({joining, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done() and not ending.exception():
                # A process that failed to start says so over its connection: that error is the better one.
                await asyncio.wait({joining}, timeout=1.0)
                if not joining.done():
                    raise ChildDiedError(str(ending.result()))
            return await joining
        finally:
            for task in (joining, ending):
                task.cancel()
            await asyncio.gather(joining, ending, return_exceptions=True)

    async def _ask(
        self, method: str, payload: Mapping[str, JSON], *, timeout_s: float = ANSWER_S
    ) -> Any:
        with raised_here(ProcessError):
            reply = await self._driver.call(method, payload, timeout_s=timeout_s)
        return reply.payload

    async def _free(self, job: str) -> None:
        with contextlib.suppress(ProcessError):  # a driver that is gone has freed everything
            await self._ask("free", {"job": job})

    def _signal(self, job: str, name: str, number: int) -> None:
        async def send() -> None:
            with contextlib.suppress(ProcessError):
                await self._ask("signal", {"job": job, "name": name, "number": number})

        self._begin(send(), name=f"signal {name}")

    def _begin(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Keep a task that nobody awaits until it ends, or until the launcher is closed."""
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _wanted(specs: Sequence[ProcessSpec]) -> list[JSON]:
    return [
        {"name": spec.name, "cpus": spec.reserves.cpus, "gpus": spec.reserves.gpus}
        for spec in specs
    ]


def with_ranks(
    specs: Sequence[ProcessSpec], nodes: Sequence[Mapping[str, JSON]]
) -> list[ProcessSpec]:
    """`specs` with the variables that torch.distributed reads. Rank 0's node is the master."""
    placed = []
    for rank, (spec, node) in enumerate(zip(specs, nodes, strict=True)):
        before = [other["address"] for other in nodes[:rank]].count(node["address"])
        env = rank_environment(
            rank,
            len(specs),
            master=nodes[0]["address"],
            port=nodes[0]["port"],
            # Ray shows each process only its own GPUs: its first one is its own.
            local_rank=0 if node["gpus"] else before,
            local_world_size=1 if node["gpus"] else len(specs),
        )
        placed.append(replace(spec, env={**env, **spec.env}))
    return placed


def _joined_name(spec: ProcessSpec, job: str) -> str:
    """The name under which the process connects. It differs with each job, so that an old process
    that comes back after its node was cut off is not taken for its successor."""
    return f"{spec.name}@{job}"
