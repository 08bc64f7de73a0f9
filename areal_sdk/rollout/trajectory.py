"""Turns an episode into trajectories: decides which sampled token is trained, and in which sequence.

Turns form a forest (`Turn.parent`). Each leaf is one sequence. The sequence is the leaf's prompt, which
begins with the prompts and outputs of all ancestors, and the leaf's own output. A sampled token is
trained in the first sequence that holds it. In other sequences it is context, without a logprob. If a
sequence begins like an earlier sequence, it holds only the tokens after the common beginning.

A later turn counts as a consequence of every earlier turn, since an agent may write a prompt from
anything that happened before. There is one exception. If one prompt was answered several times (samples
to choose from, retries), the answers and their continuations are alternatives of each other.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from areal_sdk.trajectory import Branch, Trajectory, trajectory_on
from areal_sdk.types import Episode, Turn, alternatives


def to_trajectories(episode: Episode, *, train: bool = True) -> tuple[Trajectory, ...]:
    """The trainable sequences of a scored episode, in the order their branches ended.

    `train = False` keeps the sequences, and so the reward in its group's baseline, but trains
    none of their tokens. An episode without a trainable token gives an empty tuple.
    """
    reward = episode.outcome.reward
    if reward is None:
        raise ValueError(f"episode {episode.id} has no reward: {episode.outcome.kind}")
    check_parents(episode.turns)
    turn_alternatives = alternatives(episode.turns) if episode.outcome.turn_rewards else ()
    policies = {turn.policy for turn in episode.turns}
    turn_rewards = {policy: _turn_rewards_of(policy, episode) for policy in policies}
    lengths = {policy: _sampled_by(policy, episode.turns) for policy in policies}
    trained_turns: set[int] = set()
    trajectories: list[Trajectory] = []
    homes = _Homes(episode.turns)
    for branch in branches(episode.turns):
        fresh = [
            index
            for index in branch
            if index not in trained_turns
            and episode.turns[index].excluded is None
            and episode.turns[index].output_tokens
        ]
        if fresh:
            trained_turns.update(fresh)
            # Later tokens are context of no trained token; earlier ones may be another sequence's.
            most_shared = episode.turns[fresh[0]].num_prompt
            sequence = homes.settle(branch, last=fresh[-1], most_shared=most_shared)
            policy = episode.turns[fresh[0]].policy
            made = trajectory_on(
                sequence,
                {index: episode.turns[index] for index in fresh if train},
                episode_id=episode.id,
                task_id=episode.task.id,
                reward=episode.outcome.by_policy.get(policy, reward),
                turn_rewards=turn_rewards[policy],
                turn_alternatives=turn_alternatives,
                num_turns=len(episode.turns),
                num_sampled=sum(lengths[policy]),
                turn_lengths=lengths[policy] if turn_alternatives else (),
                policy=policy,
            )
            trajectories.append(made)
    return tuple(trajectories)


def _turn_rewards_of(policy: str, episode: Episode) -> tuple[float | None, ...]:
    """The rewards of a policy's own turns; empty for a policy that has a reward in `Outcome.by_policy`."""
    rewards, turns = episode.outcome.turn_rewards, episode.turns
    if policy in episode.outcome.by_policy:
        return ()
    if all(turn.policy == policy for turn in turns):
        return rewards
    return tuple(r if t.policy == policy else None for r, t in zip(rewards, turns, strict=False))


def _sampled_by(policy: str, turns: Sequence[Turn]) -> tuple[int, ...]:
    """Number of tokens in each turn that training may use for the policy."""
    return tuple(0 if t.excluded or t.policy != policy else len(t.output_tokens) for t in turns)


def oldest_trainable(turns: Sequence[Turn]) -> int | None:
    """The version of the oldest token that would be trained; None if there is none."""
    trained = (turn.versions for turn in turns if turn.excluded is None)
    return min((version for versions in trained for version in versions), default=None)


def check_parents(turns: Sequence[Turn]) -> None:
    """Raise ValueError unless each turn extends the tokens of its parent. Otherwise a turn would inherit the
    logprobs, masks and versions of other tokens."""
    for index, turn in enumerate(turns):
        parent = turn.parent
        if parent is None:
            continue
        if not 0 <= parent < index:
            raise ValueError(
                f"turn {index} names turn {parent} as its parent: parents come earlier"
            )
        if turn.policy != turns[parent].policy:
            raise ValueError(
                f"turn {index} of policy {turn.policy!r} names turn {parent} of policy "
                f"{turns[parent].policy!r} as its parent: sequences never mix policies"
            )
        if not turn.extends(turns[parent]):
            raise ValueError(
                f"turn {index} names turn {parent} as its parent but does not extend its tokens"
            )


def as_recorded(turns: Sequence[Turn], recorded: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns that a workflow returned, each with the exclusion that the session gave it.

    A session excludes side calls when it closes, after the workflow read `context.turns`.
    """
    return tuple(
        turn
        if turn.excluded is not None or known.excluded is None
        else replace(turn, excluded=known.excluded)
        for turn, known in zip(turns, recorded, strict=True)
    )


def branches(turns: Sequence[Turn]) -> Iterator[tuple[int, ...]]:
    """Each leaf's chain of turns, oldest first, as indices."""
    parents = {turn.parent for turn in turns}
    for leaf in range(len(turns)):
        if leaf in parents:
            continue
        chain: list[int] = []
        index: int | None = leaf
        while index is not None:
            chain.append(index)
            index = turns[index].parent
        yield tuple(reversed(chain))


class _Homes:
    """The sequences so far: for each turn, the sequence that begins with most of its tokens, and the number of these."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._found: dict[int, tuple[Branch, int]] = {}

    def settle(self, chain: Sequence[int], *, last: int, most_shared: int) -> Branch:
        """Make the sequence of the chain's turns up to `last`. It shares at most `most_shared` tokens with an earlier one."""
        before, num_shared = self._longest(chain, last)
        num_shared = min(num_shared, most_shared)
        tokens = self._turns[last].tokens_from(num_shared)
        made = Branch(tokens, before=before, num_before=num_shared)
        for index in reversed(chain[: chain.index(last) + 1]):
            for turn, shared in self._alike(index):
                if turn in self._found and self._found[turn][1] >= shared:
                    break  # and it begins like all that keep its beginning
                self._found[turn] = made, shared
        return made

    def _longest(self, chain: Sequence[int], last: int) -> tuple[Branch | None, int]:
        nearest = next((index for index in reversed(chain) if index in self._found), None)
        best: tuple[Branch | None, int] = (None, 0) if nearest is None else self._found[nearest]
        for turn, shared in self._alike(last):
            if shared <= best[1]:
                break
            if turn in self._found:
                branch, known = self._found[turn]
                best = max(best, (branch, min(known, shared)), key=lambda pair: pair[1])
        return best

    def _alike(self, index: int | None) -> Iterator[tuple[int, int]]:
        """The turn, then the earlier turns that begin like it, each with the number of tokens that both have in common."""
        shared: float = math.inf
        while index is not None:
            turn = self._turns[index]
            shared = min(shared, turn.num_tokens)
            yield index, int(shared)
            shared, index = min(shared, turn.num_shared), turn.shares_with


def oldest_version(trajectories: Iterable[Trajectory]) -> int | None:
    """The version of the oldest trained token; None when no token is trained."""
    versions = (trajectory.oldest_version for trajectory in trajectories)
    return min((v for v in versions if v is not None), default=None)


def mask_older(trajectory: Trajectory, *, than: int) -> Trajectory:
    """The trajectory with every trained token sampled before version `than` turned into context."""
    keep = trajectory.loss_mask & (trajectory.versions >= than)
    if np.array_equal(keep, trajectory.loss_mask):
        return trajectory
    return replace(
        trajectory,
        loss_mask=keep,
        logprobs=np.where(keep, trajectory.logprobs, 0.0),
        versions=np.where(keep, trajectory.versions, -1),
        temperatures=np.where(keep, trajectory.temperatures, 1.0),
        turn_of_token=np.where(keep, trajectory.turn_of_token, -1),
    )
