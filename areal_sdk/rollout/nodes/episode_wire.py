"""Requests and whole episodes between the main process and a rollout node.

A request travels as a pickle, because a task holds values of users. An episode comes back without its
task, which the main process has: one array for each per-token field, and a pickle of the rest, which is
of types of the SDK only. Training episodes come back triaged (`triaged.py`).
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from areal_sdk.errors import InfrastructureError
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.process.frames import Buffer
from areal_sdk.process.services import Answer, Bulk, Service, Stream
from areal_sdk.rollout.groups import Truncated
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.types import Episode, Task, Turn, pack_turns, unpack_turns

_TURN_FIELDS = tuple(Turn.__dataclass_fields__)
_ARRAYS = tuple(
    _TURN_FIELDS.index(name) for name in ("new_tokens", "output_tokens", "logprobs", "versions")
)
"""Places of the per-token fields in a row of `pack_turns`."""
_NEW, _OUTPUT, _LOGPROBS, _VERSIONS = _ARRAYS


@dataclass(frozen=True, slots=True)
class Stage:
    """The settings that all episodes of a runner share. Training is a stage, and so is each kind of evaluation."""

    split: str
    sampling: SamplingPolicy
    truncated: Truncated | None = None
    """The treatment of training episodes that a limit has ended; None: the episodes are not triaged."""
    journal: Path | None = None
    """The directory of the journal of open episodes, which a node uses if it sees the run directory."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Episodes that a node is to play, and ended ones that it need not keep any longer."""

    stages: list[Stage]
    episodes: Sequence[tuple[int, int, Bulk]]
    """Number of an episode, place of its stage in `stages`, packed request."""
    acknowledged: list[int]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Episodes that have ended and, from time to time, facts about running ones."""

    ended: list[tuple[int, int]]
    """Number of each episode, and how many of `buffers` are its own."""
    buffers: list[Bulk]
    ages: list[tuple[int, int | None]]
    """Number of each episode whose first token got another version, and this version."""
    waits: list[tuple[str, float, float]] | None
    """The waits of the node, each as its name, its seconds so far and its longest time; None: as last reported."""


class NodeCalls(Service, Protocol):
    """Contract of a rollout node."""

    def reports(self) -> Stream[NodeReport]:
        """The episodes that have ended and are not acknowledged, and all later ones."""

    def play(self, orders: Orders) -> Answer[None]: ...

    def stop(self, numbers: list[int]) -> Answer[None]: ...

    def engine_state(self, state: Mapping[str, Any]) -> Answer[None]:
        """Take the state of the engine that `open_entrance` gave, or a newer one."""


def pack_request(request: EpisodeRequest) -> bytes:
    try:
        task = request.task
        plain = (task.id, request.group, request.sibling, request.epoch, request.attempt)
        values = pickle.dumps(task.data, protocol=pickle.HIGHEST_PROTOCOL)
        return pickle.dumps((request.id, *plain, values), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        raise InfrastructureError(  # no agent is to blame
            f"task {request.task.id!r} cannot be sent to a rollout node ({exc}): keep to plain values "
            "in Task.data, or set rollout.nodes = 1"
        ) from exc


def unpack_request(packed: bytes | memoryview) -> tuple[EpisodeRequest, bytes]:
    """The request with an empty task, and the packed values of the task for `with_values`."""
    name, task_id, *rest, values = pickle.loads(packed)
    return EpisodeRequest(name, Task(task_id), *rest), values


def with_values(request: EpisodeRequest, values: bytes) -> EpisodeRequest:
    """The request with its whole task. Reads values of users, which may fail."""
    try:
        return replace(request, task=Task(request.task.id, pickle.loads(values)))
    except Exception as exc:
        raise InfrastructureError(
            f"a task cannot be read in a rollout node ({type(exc).__name__}: {exc}): keep to plain "
            "values and importable classes in Task.data, or set rollout.nodes = 1"
        ) from exc


def pack_episode(episode: Episode) -> list[Buffer]:
    """The buffers of one episode: a pickle, then tokens, logprobs and versions."""
    rows = pack_turns(episode.turns)
    tokens = _joined(rows, _NEW, _OUTPUT, dtype=np.int32)
    logprobs = _joined(rows, _LOGPROBS, dtype=np.float64)
    short = logprobs.astype(np.float32)
    if np.array_equal(short, logprobs):  # engines compute in float32: half the bytes, and exact
        logprobs = short
    versions = _joined(rows, _VERSIONS, dtype=np.int32)
    for row in rows:
        for place in _ARRAYS:
            row[place] = len(row[place])
    rest = (
        episode.outcome,
        episode.attempt,
        episode.truncated,
        episode.duration_s,
        logprobs.dtype.char,
        rows,
    )
    return [pickle.dumps(rest, protocol=pickle.HIGHEST_PROTOCOL), tokens, logprobs, versions]


def unpack_episode(request: EpisodeRequest, buffers: Sequence[memoryview]) -> Episode:
    packed, *arrays = buffers
    outcome, attempt, truncated, duration_s, kind, rows = pickle.loads(packed)
    tokens, logprobs, versions = (
        np.frombuffer(array, dtype=dtype).tolist()
        for array, dtype in zip(arrays, (np.int32, kind, np.int32), strict=True)
    )
    at = sampled = 0
    for row in rows:
        num_new, num_output = row[_NEW], row[_OUTPUT]
        middle, end = at + num_new, at + num_new + num_output
        row[_NEW], row[_OUTPUT] = tuple(tokens[at:middle]), tuple(tokens[middle:end])
        row[_LOGPROBS] = tuple(logprobs[sampled : sampled + num_output])
        row[_VERSIONS] = tuple(versions[sampled : sampled + num_output])
        at, sampled = end, sampled + num_output
    return Episode(
        id=request.id,
        task=request.task,
        turns=tuple(unpack_turns(rows)),
        outcome=outcome,
        group=request.group,
        sibling=request.sibling,
        epoch=request.epoch,
        attempt=attempt,
        truncated=truncated,
        duration_s=duration_s,
    )


def _joined(rows: Sequence[list[Any]], *places: int, dtype: type[np.generic]) -> NDArray[Any]:
    """The values of some fields of all rows, one after the other."""

    def values() -> Iterator[Any]:
        for row in rows:
            for place in places:
                yield from row[place]

    return np.fromiter(values(), dtype=dtype)
