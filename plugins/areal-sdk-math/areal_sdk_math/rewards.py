"""Find the answer that a model marked as final, and compare it with the task's."""

from areal_sdk import Episode
from areal_sdk_math.answers import last_boxed, same_answer


def boxed_answer(episode: Episode, *, field: str = "answer", partial_credit: float = 0.0) -> float:
    r"""1.0 when the last `\boxed{...}` of the final text is the answer."""
    return _score(last_boxed(episode.final_text), episode, field, partial_credit)


def hash_answer(episode: Episode, *, field: str = "answer", partial_credit: float = 0.0) -> float:
    """1.0 when what follows the last `####` is the answer."""
    _, marker, said = episode.final_text.rpartition("####")
    lines = said.strip().splitlines()
    return _score(lines[0] if marker and lines else None, episode, field, partial_credit)


def _score(said: str | None, episode: Episode, field: str, partial_credit: float) -> float:
    if field not in episode.task.data:
        known = ", ".join(sorted(episode.task.data)) or "nothing"
        raise ValueError(f"task {episode.task.id!r} has no data[{field!r}]; it has: {known}")
    expected = str(episode.task.data[field])
    _, marker, final = expected.rpartition("####")  # GSM8K's solutions end with the answer
    if marker:
        expected = final.strip()
    if said is None:
        return 0.0
    return 1.0 if same_answer(said, expected) else partial_credit
