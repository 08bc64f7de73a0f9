"""Which turns are no consequence of which: several answers to one prompt lead different ways.

Every later turn counts as a consequence of an earlier one, since an agent may write each prompt
anew from what happened before. Only where one prompt was answered twice (samples to choose from,
retries) the answers, and what goes on from them, are known to be apart.
"""

from collections import Counter
from collections.abc import Sequence

from areal_sdk.types import Turn


def rivals(turns: Sequence[Turn]) -> tuple[tuple[int, ...], ...]:
    """For each turn, the later ones that are no consequence of it; empty where no turn has any.

    >>> one, other = (Turn((1, 2), (token,), (-0.5,), (0,)) for token in (3, 4))
    >>> rivals([one, other])
    ((1,), ())
    """
    prompts = _prompts(turns)
    repeated = {prompt for prompt, count in Counter(prompts).items() if count > 1}
    if not repeated:
        return ()
    paths: list[dict[int, int]] = []
    """For each turn, the answers that it goes on from, itself included, by repeated prompt."""
    for index, turn in enumerate(turns):
        path = {} if turn.parent is None else dict(paths[turn.parent])
        if prompts[index] in repeated:
            path[prompts[index]] = index
        paths.append(path)
    return tuple(
        tuple(
            later
            for later in range(index + 1, len(turns))
            if any(paths[later].get(prompt, answer) != answer for prompt, answer in path.items())
        )
        for index, path in enumerate(paths)
    )


def _prompts(turns: Sequence[Turn]) -> list[int]:
    """For each turn, the first one of the same prompt."""
    known: dict[tuple[int | None, int], list[int]] = {}
    """Turns of different prompts, by what tells most prompts apart."""
    first: list[int] = []
    for index, turn in enumerate(turns):
        alike = known.setdefault((turn.parent, turn.num_prompt), [])
        same = (i for i in alike if turns[i].prompt_tokens == turn.prompt_tokens)
        first.append(next(same, index))
        if first[-1] == index:
            alike.append(index)
    return first
