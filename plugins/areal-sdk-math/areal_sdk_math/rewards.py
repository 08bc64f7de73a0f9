"""Find the answer that a model marked as final, and compare it with the task's."""

from areal_sdk import Episode
from areal_sdk_math.answers import final_answer, last_boxed, last_number, same_answer
from areal_sdk_math.verifier import Comparison, verifier


def boxed_answer(episode: Episode, *, field: str = "answer", partial_credit: float = 0.0) -> float:
    r"""1.0 when the last `\boxed{...}` of the final text is the answer."""
    return _score(last_boxed(episode.final_text), episode, field, partial_credit)


def hash_answer(episode: Episode, *, field: str = "answer", partial_credit: float = 0.0) -> float:
    """1.0 when the text after the last `####` is the answer."""
    _, marker, said = episode.final_text.rpartition("####")
    lines = said.strip().splitlines()
    return _score(lines[0] if marker and lines else None, episode, field, partial_credit)


def final_number(episode: Episode, *, field: str = "answer", partial_credit: float = 0.0) -> float:
    """1.0 when the last number of the final text is the answer."""
    return _score(last_number(episode.final_text), episode, field, partial_credit)


def math_answer(
    episode: Episode,
    *,
    field: str = "answer",
    partial_credit: float = 0.0,
    timeout_s: float = 5.0,
    memory_mb: int = 512,
) -> float:
    r"""1.0 when the last `\boxed{...}` is equal to the answer as an expression, by math-verify.

    An expression that takes more CPU time than `timeout_s`, or more memory, is a wrong answer. A process
    that is killed or stalled from outside is a fault of the machine, and no verdict.
    """
    said, expected = last_boxed(episode.final_text), _expected(episode, field)
    if said is None:
        return 0.0
    if same_answer(said, expected):
        return 1.0
    compared = verifier(timeout_s, memory_mb).compare(said, expected)
    return 1.0 if compared is Comparison.SAME else partial_credit


def _score(said: str | None, episode: Episode, field: str, partial_credit: float) -> float:
    expected = _expected(episode, field)
    if said is None:
        return 0.0
    return 1.0 if same_answer(said, expected) else partial_credit


def _expected(episode: Episode, field: str) -> str:
    if field not in episode.task.data:
        known = ", ".join(sorted(episode.task.data)) or "nothing"
        raise ValueError(f"task {episode.task.id!r} has no data[{field!r}]; it has: {known}")
    return final_answer(str(episode.task.data[field]))
