"""Rows from run directories: the best episodes of each task, and the best against the worst.

Episodes of an engine of this SDK have recorded tokens, which are trained and never rendered again. Answers
of another provider (`serve --upstream`, a teacher) are text, and are rendered.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from areal_sdk.errors import ConfigError
from areal_sdk.finetune.rendering import TokenPair
from areal_sdk.gateway.tokens.demonstrations import WEIGHT
from areal_sdk.loop.plan.rows import Conversation, Pair
from areal_sdk.rollout.trajectory import branches
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.episode_log import EpisodeSummary, read_episode
from areal_sdk.trainer import Demonstration
from areal_sdk.types import Episode, Exclusion, Message, Tool, Turn

_Place = tuple[str, int]

LEARNT = ("train", "live")
"""The splits to learn from. Those that were measured stay unseen."""


@dataclass(frozen=True, slots=True)
class EpisodeChoice:
    """Which episodes of a run are learnt from."""

    min_reward: float | None = None
    """None: those that succeeded."""
    per_task: int | None = None
    """At most so many of a task, the best rewarded, of equal ones the newest; None: all."""

    def admits(self, episode: EpisodeSummary) -> bool:
        if episode.reward is None:
            return False
        if self.min_reward is not None:
            return episode.reward >= self.min_reward
        return episode.reward >= 1.0 if episode.success is None else episode.success


def best_episodes(run_dir: RunDir, selection: EpisodeChoice) -> list[Episode]:
    """The episodes to imitate, oldest first; ConfigError that names the cure where there are none."""
    seen = [episode for episode in run_dir.list_episodes() if episode.split in LEARNT]
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


def _why_none(seen: Sequence[EpisodeSummary], selection: EpisodeChoice) -> str:
    if not seen:
        return "no episodes to learn from (those of its evaluations do not count)"
    rewards = [episode.reward for episode in seen if episode.reward is not None]
    if not rewards:
        return f"none of its {len(seen)} episodes has a reward: post rewards, or give a JSONL file"
    asked = (
        "succeeded" if selection.min_reward is None else f"has a reward of {selection.min_reward:g}"
    )
    return (
        f"none of its {len(seen)} episodes {asked}; the best reward is {max(rewards):g}: "
        "set --min-reward (finetune.min_reward)"
    )


def contrasts(run_dir: RunDir) -> list[tuple[Episode, Episode]]:
    """For each group the best and the worst of its siblings, where their rewards differ."""
    groups: dict[str, list[EpisodeSummary]] = {}
    for episode in run_dir.list_episodes():
        if episode.reward is not None and episode.split in LEARNT:
            groups.setdefault(episode.group or episode.task_id, []).append(episode)
    pairs = [
        (max(siblings, key=_reward), min(siblings, key=_reward)) for siblings in groups.values()
    ]
    differing = [(best, worst) for best, worst in pairs if _reward(best) > _reward(worst)]
    if not differing:
        raise ConfigError(
            f"{run_dir.path}: no pairs: no task has two episodes with different rewards "
            f"({len(groups)} tasks and groups with rewards were looked at)"
        )
    read = _read(run_dir, [episode for pair in differing for episode in pair])
    return [(read[_place(best)], read[_place(worst)]) for best, worst in reversed(differing)]


def _reward(episode: EpisodeSummary) -> float:
    return -1e300 if episode.reward is None else episode.reward


def _read(run_dir: RunDir, chosen: Iterable[EpisodeSummary]) -> dict[_Place, Episode]:
    """The episodes by their places, oldest first. A resumed run gives an id again, so ids do not tell them apart."""
    in_order = sorted(chosen, key=_place)
    return {
        _place(episode): read_episode(run_dir.episodes, episode).episode for episode in in_order
    }


def _place(episode: EpisodeSummary) -> _Place:
    return episode.file, episode.offset


def is_text(episode: Episode) -> bool:
    """Whether another provider answered: there are no tokens."""
    return not any(turn.output_tokens for turn in episode.turns)


def recorded_tokens(episode: Episode) -> list[Demonstration]:
    """The sequences of an episode that our engine sampled, every sampled token trained once.

    Imitation needs no logprobs, so turns count that a policy gradient leaves out (greedy ones, or
    sampled with penalties); calls beside the conversation do not.
    """
    found = []
    trained: set[int] = set()
    for branch in branches(episode.turns):
        turns = {index: episode.turns[index] for index in branch if index not in trained}
        fresh = {
            index: turn
            for index, turn in turns.items()
            if turn.output_tokens and turn.excluded is not Exclusion.SIDE_CALL
        }
        if fresh:
            trained |= fresh.keys()
            tokens = fresh[max(fresh)].tokens
            mask = [False] * len(tokens)
            for turn in fresh.values():
                mask[turn.num_prompt : turn.num_tokens] = [True] * len(turn.output_tokens)
            found.append(Demonstration(tokens, tuple(mask)))
    return found


def recorded_pair(best: Episode, worst: Episode) -> TokenPair | None:
    """The two as one pair; None where they do not answer the same prompt in one sequence each."""
    chosen, rejected = recorded_tokens(best), recorded_tokens(worst)
    if len(chosen) != 1 or len(rejected) != 1:
        return None
    if best.turns[0].prompt_tokens != worst.turns[0].prompt_tokens:
        return None
    return TokenPair(chosen[0], rejected[0])


def recorded_text(episode: Episode) -> list[Conversation]:
    """The branches of an episode of another provider. Only what it answered is trained, once."""
    found = []
    trained: set[int] = set()
    for branch in branches(episode.turns):
        messages: list[Message] = []
        for index in branch:
            turn = episode.turns[index]
            messages += [_context(message) for message in turn.new_messages]
            is_new = index not in trained and bool(turn.message)
            messages.append(dict(turn.message) if is_new else _context(turn.message))
        trained.update(branch)
        found.append(
            Conversation(tuple(messages), _tools(episode.turns[branch[0]]), f"episode {episode.id}")
        )
    return found


def text_pair(best: Episode, worst: Episode) -> Pair | None:
    """The two as a pair of answers to the same messages; None where they do not begin alike."""
    ours, others = recorded_text(best), recorded_text(worst)
    if len(ours) != 1 or len(others) != 1:
        return None
    (chosen,), (rejected,) = ours, others
    asked = best.turns[0].new_messages
    if asked != worst.turns[0].new_messages:
        return None
    return Pair(
        tuple(asked),
        chosen.messages[len(asked) :],
        rejected.messages[len(asked) :],
        chosen.tools,
        f"episodes {best.id} and {worst.id}",
    )


def _context(message: Message) -> Message:
    return {**message, WEIGHT: 0} if message.get("role") == "assistant" else dict(message)


def _tools(first: Turn) -> tuple[Tool, ...]:
    return tuple(first.details.get("tools", ()))
