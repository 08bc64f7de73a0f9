"""Endings in groups of those that are alike: TF-IDF and average linkage. The same endings give the same groups."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from areal_sdk_view.answers.endings import FIELDS, Ending

CUT = 0.5
"""Largest mean distance between the endings of two groups that become one: half of what they say differs."""
SHARED = 0.8
"""Share of the episodes of a group that have what its name says."""

Matrix = NDArray[np.float64]


def cluster(counts: Mapping[Ending, int]) -> list[list[Ending]]:
    """The endings in groups. `counts`: the episodes that ended so, which weigh in every mean."""
    endings = sorted(counts)
    sizes = np.array([counts[one] for one in endings], np.float64)
    found = _average_linkage(_distances(endings, sizes), sizes)
    return [[endings[n] for n in members] for members in found]


def _distances(endings: Sequence[Ending], sizes: Matrix) -> Matrix:
    """One minus the cosines of the TF-IDF vectors. A rare term weighs more than a common one.

    The weight of a field is divided among the terms of its text: words, and pairs of words that follow each other.
    """
    holds: dict[tuple[str, object], list[int]] = defaultdict(list)
    shares = np.zeros((len(FIELDS), len(endings)))
    for row, ending in enumerate(endings):
        for number, (field, text) in enumerate(zip(FIELDS, ending, strict=True)):
            words = text.split()
            terms = dict.fromkeys([*words, *pairwise(words)])
            shares[number, row] = FIELDS[field] / math.sqrt(max(1, len(terms)))
            for term in terms:
                holds[field, term].append(row)
    shares_of = dict(zip(FIELDS, shares, strict=True))
    squares, dots = np.zeros(len(endings)), np.zeros((len(endings), len(endings)))
    for (field, _), rows in holds.items():
        values = shares_of[field][rows] * math.log((1.0 + sizes.sum()) / sizes[rows].sum())
        squares[rows] += values**2
        if len(rows) > 1:  # most terms are of one ending, and this is the slow part
            dots[np.ix_(rows, rows)] += np.outer(values, values)
    lengths = np.sqrt(np.maximum(squares, 1e-12))
    distances: Matrix = 1.0 - dots / np.outer(lengths, lengths)
    return distances


def _average_linkage(distances: Matrix, sizes: Matrix) -> list[list[int]]:
    """Groups of rows: the two nearest groups become one, until no two are nearer than `CUT`."""
    num = len(distances)
    members = {row: [row] for row in range(num)}
    between, sizes = distances.copy(), sizes.copy()
    np.fill_diagonal(between, np.inf)
    while len(members) > 1:
        one, other = divmod(int(between.argmin()), num)
        if between[one, other] > CUT:
            break
        both = sizes[one] + sizes[other]
        mean = (sizes[one] * between[one] + sizes[other] * between[other]) / both
        between[one], between[:, one], sizes[one] = mean, mean, both
        between[other], between[:, other] = np.inf, np.inf
        members[one] += members.pop(other)
    return list(members.values())


def in_common(group: Mapping[Ending, int]) -> dict[str, str]:
    """The name of a group: what at least `SHARED` of its episodes have in common, by field."""
    found = {}
    for place, field in enumerate(FIELDS):
        texts: Counter[str] = Counter()
        for ending, num in group.items():
            texts[ending[place]] += num
        if text := _common_words(texts):
            found[field] = text
    return found


def _common_words(texts: Counter[str]) -> str:
    """The words of the most frequent text that the others have too, in its order, with `…` for the rest.

    >>> _common_words(Counter({"no file a here": 3, "no file b here": 3}))
    'no file … here'
    """
    least = SHARED * texts.total()
    holds: Counter[str] = Counter()
    for text, num in texts.items():
        holds.update(dict.fromkeys(text.split(), num))
    text = min(texts, key=lambda one: (-texts[one], one))
    if texts[text] >= least:
        return text
    words = [word if holds[word] >= least else "…" for word in text.split()]
    kept = [word for n, word in enumerate(words) if word != "…" or words[n - 1 : n] != ["…"]]
    return " ".join(kept) if any(word.strip("…#→.,:") for word in kept) else ""
