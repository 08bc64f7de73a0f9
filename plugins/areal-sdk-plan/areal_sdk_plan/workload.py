"""The workload: lengths and pauses of episodes, recorded or described."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from areal_sdk import ConfigError


@dataclass(frozen=True, slots=True)
class TurnShape:
    """One model call, by its lengths. What the tokens are does not matter to time."""

    num_prompt: int
    """Tokens of the whole prompt."""
    num_new: int
    """Tokens of the prompt that the engine computes: the rest is in its prefix cache."""
    num_output: int
    before_s: float = 0.0
    """Seconds of the agent and its tools between the turn before and this one."""
    num_shared: int = 0
    """Tokens of `num_new` with which all siblings begin: an engine computes them once a group."""


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """One episode, by the lengths of its turns."""

    turns: tuple[TurnShape, ...]
    after_s: float = 0.0
    """Seconds from the last turn to the verdict: the agent's end, and the reward."""
    is_valid: bool = True
    """Whether the episode gets a reward. An episode without a reward is dropped."""

    @property
    def num_sampled(self) -> int:
        return sum(turn.num_output for turn in self.turns)

    @property
    def num_trained_row(self) -> int:
        """Tokens that the trainer computes for the episode: the last prompt with its answer."""
        if not self.turns:
            return 0
        last = self.turns[-1]
        return last.num_prompt + last.num_output


@dataclass(frozen=True, slots=True)
class LongTail:
    """A log-normal length or duration: its median, its spread, and its bounds.

    >>> LongTail(median=4.0).draw(random.Random(0))
    4.0
    """

    median: float
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0: every draw is the median."""
    least: float = 0.0
    most: float = math.inf

    def draw(self, generator: random.Random) -> float:
        if not self.sigma or not self.median:
            return self.median
        drawn = self.median * generator.lognormvariate(0.0, self.sigma)
        return min(self.most, max(self.least, drawn))


@dataclass(frozen=True, slots=True)
class Workload:
    """Groups of siblings to draw episodes from."""

    groups: tuple[tuple[EpisodeShape, ...], ...]
    idle_share: float = 0.0
    """Part of the groups that teach nothing; dynamic sampling replaces them."""
    trained_share: float = 1.0
    """Tokens that the trainer computes, for each token of the rows: below 1 where prefixes are shared."""

    def __post_init__(self) -> None:
        if not any(self.groups):
            raise ConfigError("a workload needs at least one episode to draw from")

    def draw(self, generator: random.Random, size: int) -> Sequence[EpisodeShape]:
        """The siblings of one new group: drawn with replacement from one group of the record."""
        group = self.groups[int(generator.random() * len(self.groups))]
        if len(group) == 1:
            return (group[0],) * size
        return [group[int(generator.random() * len(group))] for _ in range(size)]

    @property
    def episodes(self) -> Sequence[EpisodeShape]:
        return [shape for group in self.groups for shape in group]

    def mean_turns(self) -> float:
        """Calls of an episode."""
        return _mean([len(shape.turns) for shape in self.episodes])

    def mean_sampled(self) -> float:
        """Sampled tokens of an episode."""
        return _mean([shape.num_sampled for shape in self.episodes])

    def mean_row(self) -> float:
        """Tokens that the trainer computes for an episode."""
        return self.trained_share * _mean([shape.num_trained_row for shape in self.episodes])

    def row_of_token(self) -> float:
        """Length of the row that a token of the trainer is in: the mean over tokens, not over rows."""
        rows = [shape.num_trained_row for shape in self.episodes]
        return sum(row * row for row in rows) / max(1, sum(rows))

    @classmethod
    def described(
        cls,
        *,
        output: LongTail,
        prompt: int = 512,
        turns: int = 1,
        tool: LongTail | None = None,
        num_answered: int = 0,
        reward_s: float = 0.0,
        group_size: int = 16,
        context: int | None = None,
        num_groups: int = 128,
        seed: int = 0,
        trained_share: float = 1.0,
        shares_prompt: bool = True,
    ) -> "Workload":
        """Episodes of `turns` calls, whose outputs and tool times come from the given tails.

        `num_answered`: tokens that each tool result adds to the prompt. `context` cuts episodes off.
        `shares_prompt`: an engine computes the prompt of siblings once.
        """
        generator = random.Random(seed)
        tool = tool or LongTail(0.0)

        def episode() -> EpisodeShape:
            made: list[TurnShape] = []
            length = prompt
            for index in range(turns):
                num_output = max(1, round(output.draw(generator)))
                if context is not None:
                    num_output = min(num_output, context - length)
                if num_output < 1:
                    break
                shared = prompt if index == 0 and shares_prompt else 0
                new = prompt if index == 0 else num_answered + 1
                before_s = tool.draw(generator) if index else 0.0
                made.append(TurnShape(length, new, num_output, before_s, shared))
                length += num_output + num_answered
            return EpisodeShape(tuple(made), after_s=reward_s)

        groups = tuple(tuple(episode() for _ in range(group_size)) for _ in range(num_groups))
        return cls(groups, trained_share=trained_share)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
