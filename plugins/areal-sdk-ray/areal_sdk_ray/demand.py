"""Is there room for these processes in this cluster, and if not, what is missing?"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources that one process needs, on one node."""

    name: str
    cpus: float
    gpus: int


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """The resources of a node, all in all or at the moment."""

    address: str
    cpus: float
    gpus: float


def shortage(demands: Sequence[Demand], nodes: Sequence[NodeRoom]) -> str:
    """The reason why the processes cannot be placed on `nodes`; empty if they can."""
    if not nodes:
        return "the cluster has no node"
    for what, singular in (("gpus", "GPU"), ("cpus", "CPU")):
        most = max(getattr(node, what) for node in nodes)
        for demand in demands:
            if getattr(demand, what) > most:
                needed = _count(getattr(demand, what), singular)
                return f"{demand.name} needs {needed} on one node, the largest has {most:g}"
    left = [[node.gpus, node.cpus] for node in nodes]
    for placed, demand in enumerate(sorted(demands, key=lambda d: (-d.gpus, -d.cpus))):
        room = next((r for r in left if r[0] >= demand.gpus and r[1] >= demand.cpus), None)
        if room is None:
            return (
                f"{len(demands)} processes need {_total(demands)}{_each(demands)}, and only {placed} of them "
                f"fit{'s' if placed == 1 else ''} on the {_count(len(nodes), 'node')}: {', '.join(map(_described, nodes))}"
            )
        room[0] -= demand.gpus
        room[1] -= demand.cpus
    return ""


def _total(demands: Sequence[Demand]) -> str:
    gpus, cpus = sum(d.gpus for d in demands), sum(d.cpus for d in demands)
    return f"{_count(gpus, 'GPU')} and {_count(cpus, 'CPU')}" if gpus else _count(cpus, "CPU")


def _each(demands: Sequence[Demand]) -> str:
    """The need of one process, if all need the same."""
    alike = {(demand.gpus, demand.cpus) for demand in demands}
    return f" ({_total(demands[:1])} each)" if len(alike) == 1 else ""


def _described(node: NodeRoom) -> str:
    return f"{node.address} has {_count(node.gpus, 'GPU')} and {_count(node.cpus, 'CPU')}"


def _count(number: float, singular: str) -> str:
    """A number of resources with its noun.

    >>> _count(1, "GPU"), _count(2.0, "GPU")
    ('1 GPU', '2 GPUs')
    """
    return f"{number:g} {singular}{'' if number == 1 else 's'}"
