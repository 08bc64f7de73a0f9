"""The child that talks to Ray: it finds room, starts hosts there, and gives the room back.

Ray ends the hosts when this process ends, however that happens; each process ends with its host.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from areal_sdk.errors import ConfigError, ProcessError
from areal_sdk.launcher import Answering, Channel, split_address
from areal_sdk_ray.demand import Demand, NodeRoom, shortage
from areal_sdk_ray.host import RayHost, minor_version, versions
from areal_sdk_ray.placing import Placing, Room, Start, Wanted

JSON = Any

REACH_S = 10.0
"""Seconds for the cluster's address to accept a connection."""
STARTED_S = 120.0
"""Seconds that a running host may take to start its process."""
SHORTAGES = ("NO_RESOURCES", "INFEASIBLE")
"""States that Ray's scheduler gives to a group that waits for room. Groups in other states wait for
the scheduler, or for a node's answer."""
SHORT_S = 10.0
"""Seconds without a break that a group waits for room that it had before: a node that answers late
gives back the room of ended jobs late, and is full until then."""
COMPARED = ("areal-sdk", "areal-sdk-ray", "torch", "transformers", "numpy")
"""A node with other versions of these could compute something else, or not understand the run's frames."""


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Entry of the process; `args`: `address` of the cluster, `run`."""
    try:
        _reach(args["address"])
        ray.init(
            address=args["address"],
            namespace=f"areal-sdk-{args['run']}",
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (OSError, RayError, ValueError) as exc:
        raise ConfigError(
            f"no Ray cluster answers at {args['address']!r} ({_first_line(exc)}): start one with "
            "`ray start --head`, or name its head: --set cluster.address=HOST:PORT"
        ) from exc
    answering = Answering(Driver(args["run"]))
    channel.ready({"address": ray.util.get_node_ip_address()})
    threads = ThreadPoolExecutor(32, thread_name_prefix="driver")
    try:
        while True:
            request = channel.receive()
            assert request is not None
            threads.submit(answering.answer, request)
    finally:
        ray.shutdown()
        threads.shutdown(wait=False, cancel_futures=True)


def _reach(address: str) -> None:
    """Raise OSError if nobody listens at `address`: Ray itself would try for minutes."""
    if ":" in address and "://" not in address:
        with socket.create_connection(split_address(address), timeout=REACH_S):
            pass


@dataclass(slots=True)
class _Job:
    group: Any
    demands: Sequence[Demand]
    hosts: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return self.demands[0].name if len(self.demands) == 1 else f"{len(self.demands)} processes"

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def is_short(self) -> bool:
        """Whether Ray's scheduler says that the job waits for room."""
        return placement_group_table(self.group)["stats"]["scheduling_state"] in SHORTAGES

    def shortage(self) -> ProcessError:
        free = ray.available_resources()
        return ProcessError(
            f"the Ray cluster had no room for {self.name} within {self.waited_s:.0f} s: other jobs, or the rest of "
            f"this run, hold its processors ({free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free). "
            "Wait for them, or raise cluster.placement_timeout_s"
        )


class Driver(Placing):
    """The jobs of one run in the cluster. Calls of several jobs come at the same time, from threads."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._jobs: dict[str, _Job] = {}

    def shortage(self, processes: tuple[Wanted, ...]) -> str:
        return shortage(demanded(processes, everywhere := rooms()), everywhere)

    def reserve(self, job: str, processes: tuple[Wanted, ...], timeout_s: float) -> bool:
        demands = demanded(processes, everywhere := rooms())
        if missing := shortage(demands, everywhere):
            raise ProcessError(f"the Ray cluster cannot hold the run: {missing}")
        bundles = [{"CPU": demand.cpus, "GPU": demand.gpus} for demand in demands]
        group = placement_group(
            [{what: count for what, count in bundle.items() if count} for bundle in bundles],
            strategy="PACK",
            name=f"{self._run}/{job}",
        )
        self._jobs[job] = asked = _Job(group, demands)
        while not group.wait(1):  # this takes no worker, as `ready` may
            if asked.waited_s >= timeout_s:
                if asked.is_short:
                    raise asked.shortage()
                return False
        return True

    def reserved(self, job: str, timeout_s: float) -> None:
        deadline = (has_room := time.monotonic()) + timeout_s
        while not (asked := self._jobs[job]).group.wait(1):
            now = time.monotonic()
            if not asked.is_short:
                has_room = now
            elif now - has_room >= SHORT_S:
                raise asked.shortage()
            if now >= deadline:
                raise ProcessError(
                    f"Ray reserved no room for {asked.name} within {asked.waited_s:.0f} s, though its scheduler misses "
                    "none: a node that does not answer holds it up. `ray status` lists the nodes"
                )

    def host(self, job: str, timeout_s: float) -> tuple[Room, ...]:
        found = self._jobs[job]
        for index, demand in enumerate(found.demands):
            found.hosts[demand.name] = (
                ray.remote(RayHost)
                .options(
                    name=f"{self._run}/{job}/{demand.name}",
                    num_cpus=demand.cpus,
                    num_gpus=demand.gpus,
                    max_concurrency=8,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(found.group, index),
                )
                .remote()
            )
        asked = {host.facts.remote(COMPARED): name for name, host in found.hosts.items()}
        done, missing = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
        ray.get(done)  # a host that failed says why
        if missing:
            raise ProcessError(
                f"Ray has reserved room for {found.name}, but started no worker for "
                f"{', '.join(asked[late] for late in missing)} within {timeout_s:g} s: the node may be crowded; its "
                "/tmp/ray/session_latest/logs/raylet.out says more"
            )
        facts: list[dict[str, Any]] = ray.get(list(asked))
        check_versions(facts, own_versions())
        return tuple(
            Room(fact["address"], fact["port"], demand.gpus)
            for fact, demand in zip(facts, found.demands, strict=True)
        )

    def start(self, job: str, processes: Mapping[str, Start]) -> dict[str, str]:
        hosts = self._jobs[job].hosts
        started = {
            name: hosts[name].start.remote(list(how.arguments), dict(how.env), how.log)
            for name, how in processes.items()
        }
        return dict(zip(started, ray.get(list(started.values()), timeout=STARTED_S), strict=True))

    def first_exit(self, job: str) -> str:
        waits = {host.wait.remote(): name for name, host in self._jobs[job].hosts.items()}
        done, _ = ray.wait(list(waits), num_returns=1)
        try:
            return f"{waits[done[0]]} {ray.get(done[0])}"
        except RayError as exc:
            return f"{waits[done[0]]} was lost with its node: {_first_line(exc)}"

    def signal(self, job: str, name: str, number: int) -> None:
        if job in self._jobs:
            self._jobs[job].hosts[name].signal.remote(number)

    def free(self, job: str) -> None:
        if found := self._jobs.pop(job, None):
            for host in found.hosts.values():
                ray.kill(host)
            remove_placement_group(found.group)


def demanded(processes: Sequence[Wanted], nodes: Sequence[NodeRoom]) -> list[Demand]:
    """The demand of each process. A process with `gpus` of None gets one GPU if some node has GPUs."""
    has_gpus = any(node.gpus for node in nodes)
    return [
        Demand(
            process.name,
            process.cpus,
            int(has_gpus) if process.gpus is None else process.gpus,
        )
        for process in processes
    ]


def rooms() -> list[NodeRoom]:
    """The living nodes, with all that they have, whoever uses it."""
    return [
        NodeRoom(
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0),
            node["Resources"].get("GPU", 0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def own_versions() -> dict[str, str]:
    """The versions that every node must have: those of the main process's machine."""
    return {"Python": minor_version(), **versions(COMPARED)}


def check_versions(facts: Sequence[Mapping[str, Any]], own: Mapping[str, str]) -> None:
    """Raise ProcessError if a node has another version than `own` of a package that the run needs there."""
    for fact in facts:
        for name, version in own.items():
            if (found := fact["versions"][name]) != version:
                raise ProcessError(
                    f"node {fact['address']} has {name} {found or '(none)'}, the main process "
                    f"{version or '(none)'}: install the same version there"
                )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
