"""Trajectory groups, demonstrations and records of tokens between processes: a little JSON, the rest numpy buffers."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_sdk.process import Buffer
from areal_sdk.telemetry.token_log import COLUMNS, StepTokens, stored, whole
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import PER_TOKEN, Branch, Trajectory, TrajectoryGroup, branches_of

JSON = Any


def encode_groups(groups: Sequence[TrajectoryGroup]) -> tuple[JSON, list[Buffer]]:
    """The groups as JSON and buffers, for `decode_groups`. Shared tokens are sent once.

    >>> one = Trajectory("e", "t", (1, 2), (False, True), (0.0, -0.5), (-1, 3), (1.0, 1.0), (-1, 0), 1.0)
    >>> group = TrajectoryGroup("g", "t", (one,), "s")
    >>> decode_groups(*encode_groups([group])) == [group]
    True
    """
    trajectories = [t for group in groups for t in group.trajectories]
    if len(policies := sorted({t.policy for t in trajectories})) > 1:
        raise ValueError(
            f"a batch of one trainer holds tokens of {len(policies)} policies: {policies}"
        )
    branches = branches_of(trajectories)
    places = {id(branch): place for place, branch in enumerate(branches)}
    listed = [
        {
            "id": group.id,
            "task_id": group.task_id,
            "source": group.source,
            "trajectories": [
                {
                    "episode_id": t.episode_id,
                    "task_id": t.task_id,
                    "branch": places[id(t.branch)],
                    "reward": t.reward,
                    "turn_rewards": t.turn_rewards,
                    "turn_alternatives": t.turn_alternatives,
                    "num_turns": t.num_turns,
                    "num_sampled": t.num_sampled,
                    "turn_lengths": t.turn_lengths,
                }
                for t in group.trajectories
            ],
        }
        for group in groups
    ]
    links = [
        (len(b.tokens), None if b.before is None else places[id(b.before)], b.num_before)
        for b in branches
    ]
    return {"branches": links, "groups": listed}, [
        _concatenated((branch.tokens for branch in branches), np.int32),
        *(
            _concatenated((getattr(t, name) for t in trajectories), dtype)
            for name, dtype in PER_TOKEN.items()
            if name != "tokens"
        ),
    ]


def decode_groups(payload: JSON, buffers: Sequence[Buffer]) -> list[TrajectoryGroup]:
    branches: list[Branch] = []
    runs = _views(buffers[0], np.int32, [link[0] for link in payload["branches"]])
    for tokens, (_, before, num_before) in zip(runs, payload["branches"], strict=True):
        start = None if before is None else branches[before]
        branches.append(Branch(tokens, before=start, num_before=num_before))
    of_trajectories = [
        branches[t["branch"]] for group in payload["groups"] for t in group["trajectories"]
    ]
    lengths = [len(branch.tokens) for branch in of_trajectories]
    others = {name: dtype for name, dtype in PER_TOKEN.items() if name != "tokens"}
    columns = [
        _views(buffer, dtype, lengths)
        for buffer, dtype in zip(buffers[1:], others.values(), strict=True)
    ]
    rows = zip(of_trajectories, *columns, strict=True)
    fields = (
        {"tokens": branch.tokens, "branch": branch, **dict(zip(others, row, strict=True))}
        for branch, *row in rows
    )
    return [
        TrajectoryGroup(
            group["id"],
            group["task_id"],
            tuple(
                Trajectory(
                    episode_id=t["episode_id"],
                    task_id=t["task_id"],
                    reward=t["reward"],
                    turn_rewards=tuple(t["turn_rewards"]),
                    turn_alternatives=tuple(map(tuple, t["turn_alternatives"])),
                    num_turns=t["num_turns"],
                    num_sampled=t["num_sampled"],
                    turn_lengths=tuple(t["turn_lengths"]),
                    **next(fields),
                )
                for t in group["trajectories"]
            ),
            group["source"],
        )
        for group in payload["groups"]
    ]


def encode_demonstrations(rows: Sequence[Demonstration]) -> tuple[JSON, list[Buffer]]:
    """The demonstrations as JSON and buffers, for `decode_demonstrations`.

    >>> rows = [Demonstration((1, 2, 3), (False, True, True)), Demonstration((4,), (False,), 0.1)]
    >>> decode_demonstrations(*encode_demonstrations(rows)) == rows
    True
    """
    return [len(row.tokens) for row in rows], [
        _joined((row.tokens for row in rows), np.int32),
        _joined((row.loss_mask for row in rows), np.bool_),
        np.array([row.weight for row in rows], dtype=np.float64),
    ]


def decode_demonstrations(payload: JSON, buffers: Sequence[Buffer]) -> list[Demonstration]:
    tokens = _split(buffers[0], np.int32, payload)
    masks = _split(buffers[1], np.bool_, payload)
    weights = np.frombuffer(buffers[2], dtype=np.float64).tolist()
    return [Demonstration(*row) for row in zip(tokens, masks, weights, strict=True)]


def encode_tokens(tokens: StepTokens | None) -> tuple[JSON, list[Buffer]]:
    """The record of a step's tokens, rounded as its file will be; only rank 0 has it.

    >>> decode_tokens(*encode_tokens(None)) is None
    True
    """
    if tokens is None:
        return None, []
    columns = stored(tokens.columns)
    about = {**tokens.about(), "columns": list(columns)}
    return about, [np.ascontiguousarray(column) for column in columns.values()]


def decode_tokens(payload: JSON, buffers: Sequence[Buffer]) -> StepTokens | None:
    if payload is None:
        return None
    columns = {
        name: np.frombuffer(buffer, COLUMNS[name])
        for name, buffer in zip(payload["columns"], buffers, strict=True)
    }
    return StepTokens.of(payload, whole(columns))


def _concatenated(parts: Iterable[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _joined(parts: Iterable[Sequence[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(parts), dtype=dtype)


def _split(
    buffer: Buffer, dtype: type[np.generic], lengths: Sequence[int]
) -> list[tuple[Any, ...]]:
    return [tuple(row.tolist()) for row in _views(buffer, dtype, lengths)]


def _views(buffer: Buffer, dtype: type[np.generic], lengths: Sequence[int]) -> list[NDArray[Any]]:
    """An array for each length; no value is copied."""
    values = np.frombuffer(buffer, dtype=dtype)
    values.flags.writeable = False  # else each trajectory would take a copy of its part
    ends = list(accumulate(lengths, initial=0))
    return [values[start : start + n] for start, n in zip(ends, lengths, strict=False)]
