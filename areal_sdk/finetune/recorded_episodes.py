"""The part of run directories that is learnt from: the best episodes of each task, and the conversations of an episode.

Episodes of an engine of this SDK have recorded tokens, which are trained and never rendered again. Answers
of another provider (`serve --upstream`, a teacher) are text, and are rendered.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.tokens.demonstrations import WEIGHT
from areal_sdk.loop.plan.rows import Conversation
from areal_sdk.rollout.trajectory import branches
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.episode_index import EpisodeSummary
from areal_sdk.telemetry.episode_log import LEARNT, read_episode
from areal_sdk.trainer import Demonstration
from areal_sdk.types import Episode, Exclusion, FinishReason, Message, Tool, Turn

logger = logging.getLogger(__name__)

CUT_OFF = "a written answer that was cut off"
"""The reason to leave out an answer without an end. The chat template would write an end that was never sampled."""

_Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class EpisodeChoice:
    """The rule that chooses the episodes of a run to learn from."""

    min_reward: float | None = None
    """Least reward of a chosen episode. None: an episode is chosen if it succeeded."""
    per_task: int | None = None
    """Maximum number of episodes of a task: those with the highest rewards, the newest among equals. None: all."""

    def admits(self, episode: EpisodeSummary) -> bool:
        if episode.reward is None:
            return False
        if self.min_reward is not None:
            return episode.reward >= self.min_reward
        return episode.reward >= 1.0 if episode.success is None else episode.success

    def admits_policy(self, thread: "Thread") -> bool:
        """Whether the policy of a conversation did well too, in an episode that did: its opponent may have lost."""
        turns, outcome = thread.episode.turns, thread.episode.outcome
        said = turns[thread.learnt[0]]
        if said.policy in outcome.by_policy:
            least = 1.0 if self.min_reward is None else self.min_reward
            return outcome.by_policy[said.policy] >= least
        is_alone = all(turn.policy == said.policy for turn in turns)
        return is_alone or said.excluded is not Exclusion.FROZEN_POLICY


def best_episodes(run_dir: RunDir, selection: EpisodeChoice) -> list[Episode]:
    """The episodes to imitate, oldest first. If there are none, ConfigError names the cure."""
    seen = learnt_episodes(run_dir)
    by_task: dict[str, list[EpisodeSummary]] = {}
    for episode in seen:  # newest first
        if selection.admits(episode):
            by_task.setdefault(episode.task_id, []).append(episode)
    chosen = [
        episode
        for of_task in by_task.values()
        for episode in sorted(of_task, key=_reward, reverse=True)[: selection.per_task]
    ]
    if not chosen:
        raise ConfigError(f"{run_dir.path}: {_why_none(seen, selection)}")
    return list(_read(run_dir, chosen).values())


def learnt_episodes(run_dir: RunDir) -> list[EpisodeSummary]:
    """All episodes to learn from, newest first; ConfigError if none of them has a reward."""
    if deleted := run_dir.num_deleted():
        logger.warning(
            "%s has deleted its oldest %d episodes (run.keep_episodes): the others are learnt from",
            run_dir.path,
            deleted,
        )
    seen = [episode for episode in run_dir.list_episodes() if episode.split in LEARNT]
    why = ""
    if not seen:
        why = "no episodes to learn from (those of its evaluations do not count)"
    elif all(episode.reward is None for episode in seen):
        num_failed = sum(episode.error is not None for episode in seen)
        failed = f", {num_failed} ended with a fault (areal-sdk inspect RUN)" if num_failed else ""
        cure = "post rewards, or give a file"
        why = f"none of its {len(seen)} episodes has a reward{failed}: {cure}"
    if why:
        raise ConfigError(f"{run_dir.path}: {why}")
    return seen


def _why_none(seen: Sequence[EpisodeSummary], selection: EpisodeChoice) -> str:
    rewards = [episode.reward for episode in seen if episode.reward is not None]
    asked = (
        "succeeded" if selection.min_reward is None else f"has a reward of {selection.min_reward:g}"
    )
    return (
        f"none of its {len(seen)} episodes {asked}; the best reward is {max(rewards):g}: "
        "set --min-reward (finetune.min_reward)"
    )


def _reward(episode: EpisodeSummary) -> float:
    return -1e300 if episode.reward is None else episode.reward


def _read(run_dir: RunDir, chosen: Iterable[EpisodeSummary]) -> dict[_Place, Episode]:
    """The episodes by their places, oldest first. Ids would not do: a resumed run may give an id twice."""
    in_order = sorted(chosen, key=_place)
    return {
        _place(episode): read_episode(run_dir.episodes, episode).episode for episode in in_order
    }


def _place(episode: EpisodeSummary) -> _Place:
    return episode.file, episode.offset


def is_text(episode: Episode) -> bool:
    """Whether another provider answered: there are no tokens."""
    return not any(turn.output_tokens for turn in episode.turns)


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation of an episode, and which of its turns are learnt."""

    episode: Episode
    branch: tuple[int, ...]
    learnt: tuple[int, ...]
    """Turns of the branch, without those that an earlier branch has."""

    def tokens(self) -> Demonstration:
        """The sequence that our engine sampled."""
        turns = [self.episode.turns[index] for index in self.learnt]
        tokens = turns[-1].tokens
        mask = [False] * len(tokens)
        for turn in turns:
            mask[turn.num_prompt : turn.num_tokens] = [True] * len(turn.output_tokens)
        return Demonstration(tokens, tuple(mask))

    def messages(self) -> tuple[list[Message], list[Message]]:
        """The messages before the first learnt answer, and the rest. Only learnt answers have weight."""
        before: list[Message] = []
        said: list[Message] = []
        for index in self.branch[: self.branch.index(self.learnt[-1]) + 1]:
            turn = self.episode.turns[index]
            place = said if said else before
            place += [_context(message) for message in turn.new_messages]
            if index in self.learnt:
                said.append(dict(turn.message))
            else:
                place.append(_context(turn.message))
        return before, said

    def text(self) -> Conversation:
        """The conversation with another provider. Only the provider's answers are trained."""
        before, said = self.messages()
        return Conversation((*before, *said), self.tools, f"episode {self.episode.id}")

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that another provider was told of."""
        return tuple(self.episode.turns[self.branch[0]].details.get("tools", ()))


def num_cut_off(episode: Episode) -> int:
    """The number of answers of another provider that have no end. Sampled tokens need none: they are not rendered."""
    return sum(map(_is_cut_off, episode.turns)) if is_text(episode) else 0


def _is_cut_off(turn: Turn) -> bool:
    return turn.finish_reason is not FinishReason.STOP


def threads(episode: Episode) -> list[Thread]:
    """The conversations of an episode. Each turn is learnt once, and answers that were cut off are left out.

    Imitation needs no logprobs, so it also learns turns that a policy gradient leaves out (greedy, or sampled with
    penalties). It learns no calls beside the conversation.
    """
    said = [bool(turn.output_tokens) for turn in episode.turns]
    if not any(said):
        said = [bool(turn.message) and not _is_cut_off(turn) for turn in episode.turns]
    found: list[Thread] = []
    learnt: set[int] = set()
    for branch in branches(episode.turns):
        fresh = [
            index
            for index in branch
            if index not in learnt
            and said[index]
            and episode.turns[index].excluded is not Exclusion.SIDE_CALL
        ]
        if fresh:
            learnt.update(fresh)
            found.append(Thread(episode, branch, tuple(fresh)))
    return found


def _context(message: Message) -> Message:
    return {**message, WEIGHT: 0} if message.get("role") == "assistant" else dict(message)
