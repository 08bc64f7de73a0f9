"""Training episodes on their way back from a node: triaged there, and prepared for the records.

So the main process neither builds trajectories nor writes JSON. It looks at numbers, and keeps arrays and lines as
they came.
"""

import pickle
from collections.abc import Sequence
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
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.trajectory import PER_TOKEN, Branch, Trajectory
from areal_sdk.types import Episode

_DTYPES = {name: np.dtype(dtype) for name, dtype in PER_TOKEN.items()}
_WIDE = [name for name, dtype in _DTYPES.items() if dtype.itemsize == 4]
"""Names of the arrays with four bytes an entry. They come first, so that the arrays are aligned;
the mask follows, filled up to whole words."""
_Row = tuple[int, int, int | None, int, int, tuple[tuple[int, ...], ...], tuple[int, ...]]
"""Row of a trajectory: number of its own tokens, number of those before, whose these are, turns,
sampled tokens, alternatives, sampled tokens of each turn."""


def pack_triaged(episode: Episode, *, truncated: Truncated) -> list[Buffer]:
    """The buffers of one episode: its numbers, its two lines of the records, its arrays."""
    triaged = triage(episode, truncated=truncated)
    num_sampled = sum(len(turn.output_tokens) for turn in episode.turns)
    numbers: tuple[object, ...]
    if isinstance(triaged, Rejection):
        record = prepare(episode, dropped=triaged.reason)
        numbers, arrays = (triaged.reason.value, triaged.message), b""
    else:
        record = prepare(episode, trajectories=triaged.trajectories)
        rows, arrays = _packed(triaged.trajectories)
        numbers = (
            rows,
            triaged.reward,
            triaged.trajectories[0].turn_rewards,
            triaged.success,
            triaged.num_turns,
            triaged.truncated,
            triaged.oldest_version,
            dict(triaged.metrics),
            triaged.called_tools,
        )
    about = (episode.duration_s, num_sampled, numbers)
    head = pickle.dumps(about, protocol=pickle.HIGHEST_PROTOCOL)
    return [head, record.record, record.index, arrays]


def unpack_triaged(request: EpisodeRequest, buffers: Sequence[memoryview]) -> TriagedEpisode:
    head, packed, index, arrays = buffers
    duration_s, num_sampled, numbers = pickle.loads(head)
    record = PreparedRecord(bytes(packed), bytes(index))
    triaged: ScoredEpisode | Rejection
    if len(numbers) == 2:
        reason, message = numbers
        triaged = Rejection(DropReason(reason), message)
    else:
        rows, reward, turn_rewards, success, num_turns, truncated, oldest, metrics, called = numbers
        triaged = ScoredEpisode(
            request.sibling,
            _unpacked(request, rows, reward, turn_rewards, arrays),
            reward,
            success,
            num_turns,
            num_sampled,
            duration_s,
            truncated,
            oldest,
            metrics,
            called,
        )
    return TriagedEpisode(
        request.id,
        request.task,
        request.epoch,
        triaged,
        duration_s,
        num_sampled,
        record,
        lambda: _episode(request, record),
    )


def _packed(trajectories: Sequence[Trajectory]) -> tuple[list[_Row], bytes]:
    places = {id(trajectory.branch): place for place, trajectory in enumerate(trajectories)}
    rows: list[_Row] = []
    parts: list[bytes] = []
    for t in trajectories:
        before = None if t.branch.before is None else places[id(t.branch.before)]
        length, kept = len(t.tokens), t.branch.num_before
        about = (t.num_turns, t.num_sampled, t.turn_alternatives, t.turn_lengths)
        rows.append((length, kept, before, *about))
        parts += [getattr(t, name).tobytes() for name in _WIDE]
        parts += [t.loss_mask.tobytes(), bytes(-length % 4)]
    return rows, b"".join(parts)


def _unpacked(
    request: EpisodeRequest,
    rows: Sequence[_Row],
    reward: float,
    turn_rewards: tuple[float | None, ...],
    arrays: memoryview,
) -> tuple[Trajectory, ...]:
    arrays = arrays.toreadonly()  # what nobody can write to is not copied
    found: list[Trajectory] = []
    at = 0
    for length, num_before, place, num_turns, num_sampled, alternatives, lengths in rows:
        columns: dict[str, NDArray[Any]] = {}
        for name in _WIDE:
            columns[name] = np.frombuffer(arrays, _DTYPES[name], length, at)
            at += 4 * length
        mask = np.frombuffer(arrays, np.bool_, length, at)
        at += length + -length % 4
        before = None if place is None else found[place].branch
        branch = Branch(columns["tokens"], before=before, num_before=num_before)
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
                turn_rewards,
                alternatives,
                num_turns,
                num_sampled,
                lengths,
                branch,
            )
        )
    return tuple(found)


def _episode(request: EpisodeRequest, record: PreparedRecord) -> Episode:
    return read_episode_row(record.episode, task=request.task)
