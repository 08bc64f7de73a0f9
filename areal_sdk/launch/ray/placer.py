"""The child that talks to Ray: it finds room, starts hosts there, and gives the room back.

Ray ends the hosts when this process ends, however that happens; each process ends with its host.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from areal_sdk.errors import ConfigError, ProcessError
from areal_sdk.launch.ray.demand import Demand, NodeRoom, shortage
from areal_sdk.launch.ray.host import RayHost, minor_version, versions
from areal_sdk.process import JSON, Channel, ChannelClosedError, Request
from areal_sdk.process.network.handshake import split_address

REACH_S = 10.0
HOST_TIMEOUT_S = 120.0
"""Ray starts a Python process for each host."""
COMPARED = ("areal-sdk", "torch", "transformers", "numpy")
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
    placer = Placer(args["run"])
    channel.ready({"address": ray.util.get_node_ip_address()})
    threads = ThreadPoolExecutor(32, thread_name_prefix="placer")
    try:
        while True:
            request = channel.receive()
            assert request is not None
            threads.submit(_answer, placer, request)
    finally:
        ray.shutdown()
        threads.shutdown(wait=False, cancel_futures=True)


def _reach(address: str) -> None:
    """OSError if nobody listens at `address`: Ray itself would try for minutes."""
    if ":" in address and "://" not in address:
        with socket.create_connection(split_address(address), timeout=REACH_S):
            pass


def _answer(placer: "Placer", request: Request) -> None:
    handlers: dict[str, Callable[..., JSON]] = {
        "shortage": placer.shortage,
        "place": placer.place,
        "start": placer.start,
        "first_exit": placer.first_exit,
        "signal": placer.signal,
        "free": placer.free,
    }
    try:
        reply = handlers[request.method](**request.payload)
        request.reply(reply)
    except ChannelClosedError:
        return  # the main process is gone
    except Exception as exc:  # noqa: BLE001 - the launcher raises it
        with contextlib.suppress(ChannelClosedError):
            request.fail(exc)


@dataclass(slots=True)
class _Job:
    group: Any
    hosts: dict[str, Any] = field(default_factory=dict)


class Placer:
    """The jobs of one run in the cluster."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._jobs: dict[str, _Job] = {}

    def shortage(self, processes: Sequence[Mapping[str, JSON]]) -> str:
        """Why the cluster could never hold all processes, whoever uses it now; empty if it could."""
        return shortage(demanded(processes, everywhere := rooms()), everywhere)

    def place(
        self, job: str, processes: Sequence[Mapping[str, JSON]], timeout_s: float
    ) -> list[dict[str, Any]]:
        """Reserve room for all processes, close together, and put a host there for each. Returns their nodes."""
        demands = demanded(processes, everywhere := rooms())
        if missing := shortage(demands, everywhere):
            raise ProcessError(f"the Ray cluster cannot hold the run: {missing}")
        name = f"{self._run}/{job}"
        bundles = [{"CPU": demand.cpus, "GPU": demand.gpus} for demand in demands]
        group = placement_group(
            [{what: count for what, count in bundle.items() if count} for bundle in bundles],
            strategy="PACK",
            name=name,
        )
        self._jobs[job] = _Job(group)
        try:
            _wait_for_room(group, demands, timeout_s)
            for index, demand in enumerate(demands):
                self._jobs[job].hosts[demand.name] = (
                    ray.remote(RayHost)
                    .options(
                        name=f"{name}/{demand.name}",
                        num_cpus=demand.cpus,
                        num_gpus=demand.gpus,
                        max_concurrency=8,
                        scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
                    )
                    .remote()
                )
            asked = [host.facts.remote(COMPARED) for host in self._jobs[job].hosts.values()]
            facts: list[dict[str, Any]] = ray.get(asked, timeout=HOST_TIMEOUT_S)
            check_versions(facts, own_versions())
        except BaseException:
            self.free(job)
            raise
        return [{**fact, "gpus": demand.gpus} for fact, demand in zip(facts, demands, strict=True)]

    def start(self, job: str, processes: Mapping[str, Mapping[str, JSON]]) -> dict[str, Any]:
        """Start each process on its host. Returns its pid and its log."""
        hosts = self._jobs[job].hosts
        started = {name: hosts[name].start.remote(**how) for name, how in processes.items()}
        return dict(
            zip(started, ray.get(list(started.values()), timeout=HOST_TIMEOUT_S), strict=True)
        )

    def first_exit(self, job: str) -> str:
        """Wait until a process of the job has ended; returns how."""
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
        """End what is left of the job, and give its room back."""
        if found := self._jobs.pop(job, None):
            for host in found.hosts.values():
                ray.kill(host)
            remove_placement_group(found.group)


def demanded(processes: Sequence[Mapping[str, JSON]], nodes: Sequence[NodeRoom]) -> list[Demand]:
    """`gpus` of None is one GPU where there is any."""
    has_gpus = any(node.gpus for node in nodes)
    return [
        Demand(
            process["name"],
            process["cpus"],
            int(has_gpus) if process["gpus"] is None else process["gpus"],
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


def _wait_for_room(group: Any, demands: Sequence[Demand], timeout_s: float) -> None:
    try:
        ray.get(group.ready(), timeout=timeout_s)
    except GetTimeoutError:
        free = ray.available_resources()
        whom = demands[0].name if len(demands) == 1 else f"{len(demands)} processes"
        raise ProcessError(
            f"the Ray cluster had no room for {whom} within {timeout_s:g} s: other jobs, or the rest of this run, hold "
            f"its processors ({free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free). Wait for "
            f"them, or raise cluster.placement_timeout_s"
        ) from None


def own_versions() -> dict[str, str]:
    """The versions that every node must have: those of the main process's machine."""
    return {"Python": minor_version(), **versions(COMPARED)}


def check_versions(facts: Sequence[Mapping[str, Any]], own: Mapping[str, str]) -> None:
    """`ProcessError` if a node has another version than `own` of what the run needs there."""
    for fact in facts:
        for name, version in own.items():
            if (found := fact["versions"][name]) != version:
                raise ProcessError(
                    f"node {fact['address']} has {name} {found or '(none)'}, the main process "
                    f"{version or '(none)'}: install the same version there"
                )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
