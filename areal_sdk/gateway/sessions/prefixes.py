"""The agreement of a request's prompt with the turns of its session, token by token."""

from collections.abc import Sequence

from areal_sdk.types import Turn


def agreements(turns: Sequence[Turn], prompt: tuple[int, ...]) -> list[int]:
    """The number of first tokens of each turn that equal those of `prompt`. Tokens that turns share are compared
    once, so the cost is little more than the length of the prompt.

    >>> one = Turn((1, 2), (3,), (-0.5,), (0,))
    >>> agreements([one], (1, 2, 3, 4)), agreements([one], (1, 9))
    ([3], [1])
    """
    agreed: list[int] = []
    for turn in turns:
        known = turn.num_shared
        if turn.shares_with is not None and agreed[turn.shares_with] < known:
            agreed.append(agreed[turn.shares_with])
            continue
        for part in (turn.new_tokens, turn.output_tokens):
            common = _num_common(prompt[known : known + len(part)], part)
            known += common
            if common < len(part):
                break
        agreed.append(known)
    return agreed


def _num_common(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    if tokens == others:
        return len(tokens)
    low, high = 0, min(len(tokens), len(others))
    while low < high:  # slices compare at the speed of C
        middle = (low + high + 1) // 2
        if tokens[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
