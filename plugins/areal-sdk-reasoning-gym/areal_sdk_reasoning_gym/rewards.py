"""The reward: the score that the family itself gives to an answer."""

import re

from areal_sdk import Episode, Outcome
from areal_sdk_reasoning_gym.scoring import score

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
FIELDS = ("question", "answer", "family", "parameters", "metadata")


def reasoning_gym(
    episode: Episode, *, needs_tags: bool = False, partial_credit: bool = True
) -> Outcome:
    """The score of the last `<answer>`, from 0.0 to 1.0; a success is a score of 1.0.

    needs_tags: an answer without tags scores 0.0; else the whole text is the answer.
    partial_credit: keep the scores between 0 and 1 that some families give; else they are 0.0.
    """
    said = answer_in(episode.final_text, needs_tags=needs_tags)
    reached = 0.0 if said is None else _score(said, episode)
    is_right = reached >= 1.0
    return Outcome.scored(reached if partial_credit or is_right else 0.0, success=is_right)


def answer_in(text: str, *, needs_tags: bool) -> str | None:
    """The answer in what a model said, or None.

    >>> answer_in("so <answer> 4 </answer>", needs_tags=True), answer_in(" 4 ", needs_tags=False)
    ('4', '4')
    """
    tagged = _ANSWER.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    return None if needs_tags else text.strip()


def _score(said: str, episode: Episode) -> float:
    data = episode.task.data
    if missing := [field for field in FIELDS if field not in data]:
        raise ValueError(
            f"task {episode.task.id!r} has no data[{missing[0]!r}]: the reward reasoning_gym judges "
            "tasks of the dataset reasoning_gym"
        )
    return score(said, data)
