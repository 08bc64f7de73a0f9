"""Training episodes on their way back from a node: triaged there, and prepared for the records.

So the main process neither builds trajectories nor writes JSON. It looks at numbers, and keeps arrays and lines as
they came.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_sdk.process.frames import Buffer
from areal_sdk.rollout.groups import (
    Rejection,
    ScoredEpisode,
    TriagedEpisode,
    Truncated,
    triage,
)
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.telemetry.episode_log import PreparedRecord, prepare
from areal_sdk.telemetry.episode_rows import read_episode_row
from areal_sdk.trajectory import PER_TOKEN, Branch, Trajectory
from areal_sdk.types import Episode

_DTYPES = {name: np.dtype(dtype) for name, dtype in PER_TOKEN.items()}
_WIDE = [name for name, dtype in _DTYPES.items() if dtype.itemsize == 4]
"""Names of the arrays with four bytes an entry. They come first, so that the arrays are aligned;
the mask follows, filled up to whole words."""


@dataclass(frozen=True, slots=True)
class _Row:
    """The fields of a trajectory that are neither in its arrays nor in its episode."""

    length: int
    """Number of tokens of the trajectory's own branch."""
    num_before: int
    """Number of tokens that the trajectory shares with another one, at their beginning."""
    before: int | None
    """Index in `rows` of the trajectory that it shares them with; None if it shares none."""
    num_turns: int
    num_sampled: int
    turn_alternatives: tuple[tuple[int, ...], ...]
    turn_lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Head:
    """An episode without its trajectories, which are `rows` and the arrays behind them."""

    duration_s: float
    num_sampled: int
    outcome: ScoredEpisode | Rejection
    rows: tuple[_Row, ...] = ()
    turn_rewards: tuple[float | None, ...] = ()


def pack_triaged(episode: Episode, *, truncated: Truncated) -> list[Buffer]:
    """The buffers of one episode: its head, its two lines of the records, its arrays."""
    triaged = triage(episode, truncated=truncated)
    num_sampled = sum(len(turn.output_tokens) for turn in episode.turns)
    if isinstance(triaged, Rejection):
        record, arrays = prepare(episode, dropped=triaged.reason), b""
        head = _Head(episode.duration_s, num_sampled, triaged)
    else:
        record = prepare(episode, trajectories=triaged.trajectories)
        rows, arrays = _packed(triaged.trajectories)
        scored = replace(triaged, trajectories=(), metrics=dict(triaged.metrics))
        turn_rewards = triaged.trajectories[0].turn_rewards
        head = _Head(episode.duration_s, num_sampled, scored, rows, turn_rewards)
    packed = pickle.dumps(head, protocol=pickle.HIGHEST_PROTOCOL)
    return [packed, record.record, record.index, arrays]


def unpack_triaged(request: EpisodeRequest, buffers: Sequence[memoryview]) -> TriagedEpisode:
    packed_head, packed, index, arrays = buffers
    head: _Head = pickle.loads(packed_head)
    record = PreparedRecord(bytes(packed), bytes(index))
    outcome = head.outcome
    if isinstance(outcome, ScoredEpisode):
        outcome = replace(outcome, trajectories=_unpacked(request, head, outcome.reward, arrays))
    return TriagedEpisode(
        request.id,
        request.task,
        request.epoch,
        outcome,
        head.duration_s,
        head.num_sampled,
        record,
        lambda: read_episode_row(record.episode, task=request.task),
    )


def _packed(trajectories: Sequence[Trajectory]) -> tuple[tuple[_Row, ...], bytes]:
    places = {id(trajectory.branch): place for place, trajectory in enumerate(trajectories)}
    rows: list[_Row] = []
    parts: list[bytes] = []
    for t in trajectories:
        before = None if t.branch.before is None else places[id(t.branch.before)]
        length, kept = len(t.tokens), t.branch.num_before
        about = (t.num_turns, t.num_sampled, t.turn_alternatives, t.turn_lengths)
        rows.append(_Row(length, kept, before, *about))
        parts += [getattr(t, name).tobytes() for name in _WIDE]
        parts += [t.loss_mask.tobytes(), bytes(-length % 4)]
    return tuple(rows), b"".join(parts)


def _unpacked(
    request: EpisodeRequest, head: _Head, reward: float, arrays: memoryview
) -> tuple[Trajectory, ...]:
    arrays = arrays.toreadonly()  # what nobody can write to is not copied
    found: list[Trajectory] = []
    at = 0
    for row in head.rows:
        length = row.length
        columns: dict[str, NDArray[Any]] = {}
        for name in _WIDE:
            columns[name] = np.frombuffer(arrays, _DTYPES[name], length, at)
            at += 4 * length
        mask = np.frombuffer(arrays, np.bool_, length, at)
        at += length + -length % 4
        before = None if row.before is None else found[row.before].branch
        branch = Branch(columns["tokens"], before=before, num_before=row.num_before)
        found.append(
            Trajectory(
                request.id,
                request.task.id,
                branch.tokens,
                mask,
                columns["logprobs"],
                columns["versions"],
                columns["temperatures"],
                columns["turn_of_token"],
                reward,
                head.turn_rewards,
                row.turn_alternatives,
                row.num_turns,
                row.num_sampled,
                row.turn_lengths,
                branch,
            )
        )
    return tuple(found)
