"""The plan of devices: which process of a run gets which GPU of this machine, and what part of its memory."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from areal_sdk.errors import ConfigError
from areal_sdk.launcher import SHARE_VARIABLE

USED = 0.9
"""Part of a GPU's memory that processes may plan with. CUDA, NCCL and fragmentation take the rest."""
SAFETY = 1.15
"""Factor between the memory that is predicted for a rank and the memory that is set aside for it."""
LEAST = 1.25
"""Least memory of an engine as a multiple of its weights: keys and values need memory too."""
_ASK = ("nvidia-smi", "--query-gpu=index,uuid,memory.total,name", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Gpu:
    id: str
    """The name of the GPU in CUDA_VISIBLE_DEVICES."""
    memory: int
    """Bytes."""
    name: str = "GPU"


@dataclass(frozen=True, slots=True)
class Demand:
    """The processes of a run that need GPUs. A critic and a reference live in those of the ranks."""

    ranks: int = 0
    rank_bytes: Callable[[int], int] = lambda room: 0
    """Bytes that a rank takes while the engine works beside it, by the bytes that its GPU has for it. 0: not known."""
    servers: Mapping[str, int] | None = None
    """The number of GPUs of each process of the engine, by its name. 0: some room on one that no other process of the
    engine has, for a process that sends to them with NCCL."""
    weights: int = 0
    """Bytes of the weights that such a process holds on all its GPUs together."""
    takes_turns: bool = False
    """The engine lends its memory to each step (`engine.sglang.colocated`)."""


@dataclass(frozen=True, slots=True)
class Place:
    """The GPUs of a process, and the part of their memory that it may take."""

    gpus: Sequence[int]
    """Empty for a process that takes no memory to speak of."""
    seen: Sequence[int]
    """Ranks see the GPUs of all ranks, so that they can send to each other directly."""
    share: float


@dataclass(frozen=True, slots=True)
class DevicePlan:
    gpus: Sequence[Gpu]
    places: Mapping[str, Place]
    """Places by the name of the process: `trainer-0`, `engine`, `sglang-1`."""

    @property
    def environments(self) -> dict[str, dict[str, str]]:
        """The variables of each process."""
        return {name: self._environment(place) for name, place in self.places.items()}

    def _environment(self, place: Place) -> dict[str, str]:
        variables = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi numbers them
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus[index].id for index in place.seen),
        }
        return variables | ({SHARE_VARIABLE: f"{place.share:.3f}"} if place.share < USED else {})

    def lines(self) -> Iterator[str]:
        """The plan in words, GPU by GPU."""
        for index, gpu in enumerate(self.gpus):
            here = [(name, place) for name, place in self.places.items() if index in place.gpus]
            told = [f"{name} with up to {place.share:.0%} of the memory" for name, place in here]
            idle = "nothing (raise trainer.ranks, or give the engine more servers)"
            yield f"GPU {index}, {gpu.name}, {gpu.memory / 1e9:.0f} GB: {', '.join(told) or idle}"


def plan_devices(gpus: Sequence[Gpu], demand: Demand) -> DevicePlan:
    """Places for all processes: the ranks first, then each server where the fewest others are. ConfigError where a
    process could not work."""
    servers = demand.servers or {}
    for setting, wanted, why in (
        ("trainer.ranks", demand.ranks, "two ranks on one GPU cannot send to each other (NCCL)"),
        ("engine.sglang.tp_size", max(servers.values(), default=0), "a server takes so many"),
    ):
        if wanted > len(gpus):
            raise ConfigError(
                f"{setting} = {wanted}, and this run sees {len(gpus)} GPUs: {why}; lower it"
            )
    load = [int(index < demand.ranks and not demand.takes_turns) for index in range(len(gpus))]
    windows: dict[str, range] = {}
    for name, width in sorted(servers.items(), key=lambda server: not server[1]):
        if not width:
            windows[name] = _apart(name, load, windows.values())
            continue
        starts = range(len(gpus) - width + 1)
        first = min(starts, key=lambda s: (max(load[s : s + width]), sum(load[s : s + width])))
        windows[name] = range(first, first + width)
        load[first : first + width] = [count + 1 for count in load[first : first + width]]
    return DevicePlan(gpus, _shared(gpus, demand, windows))


def _apart(name: str, load: Sequence[int], taken: Iterable[range]) -> range:
    """The GPU for a process that may share one with a rank, and with no server."""
    free = [index for index in range(len(load)) if not any(index in window for window in taken)]
    if not free:
        raise ConfigError(
            f"engine.sglang.group_backend = 'nccl': each of the {len(load)} GPUs has a server, and {name} cannot send to "
            'a server on its own GPU; lower engine.sglang.servers, or set group_backend = "gloo"'
        )
    first = min(free, key=lambda index: load[index])
    return range(first, first + 1)


def _shared(gpus: Sequence[Gpu], demand: Demand, windows: dict[str, range]) -> dict[str, Place]:
    """The places with shares. A rank gets what it is predicted to take, as far as the engine beside it keeps room for
    its weights; the engine gets the rest. Where nobody knows, each gets half."""
    small = [name for name, width in (demand.servers or {}).items() if not width]
    senders = {name: Place((), windows.pop(name), USED) for name in small}
    memory, ranks = min((gpu.memory for gpu in gpus), default=1), range(demand.ranks)
    guests = [sum(index in window for window in windows.values()) for index in range(len(gpus))]
    most = max((guests[index] for index in ranks), default=0)
    least = LEAST * demand.weights / min(map(len, windows.values()), default=1) / memory
    room = max(USED - most * least, 0.0)
    taken = min(SAFETY * demand.rank_bytes(int(room * memory)) / memory or room / 2, room)
    own = taken if most and not demand.takes_turns else USED
    places = {f"trainer-{index}": Place((index,), ranks, own) for index in ranks}
    for name, window in windows.items():
        free = USED - (taken if window.start < demand.ranks else 0)
        share = max(free / max(guests[index] for index in window), min(least, USED))
        places[name] = Place(window, window, share)
    return places | senders


@cache
def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that this process may use, as nvidia-smi lists them; none where there is no nvidia-smi."""
    try:
        asked = subprocess.run(_ASK, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return visible_gpus(asked.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(listed: str, visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs of a list that CUDA_VISIBLE_DEVICES names, up to the first that is not there.

    >>> [gpu.id for gpu in visible_gpus("0, GPU-a, 15360, T4\\n1, GPU-b, 15360, T4", "GPU-b,0,7,1")]
    ['GPU-b', '0']
    """
    rows = [[cell.strip() for cell in line.split(",", 3)] for line in listed.splitlines()]
    found = []
    for name in [row[0] for row in rows] if visible is None else visible.split(","):
        known = (row for row in rows if name and (row[0] == name or row[1].startswith(name)))
        if (row := next(known, None)) is None:
            break
        found.append(Gpu(name, int(row[2]) << 20, row[3]))
    return tuple(found)
