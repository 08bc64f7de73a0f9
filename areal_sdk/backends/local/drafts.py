"""Guesses at a request's next tokens: those that followed the same tokens earlier, in its context or in other answers.

No model makes a guess, so a guess costs microseconds. The engine computes the guessed tokens together with the newest
one, samples at each place as always, and keeps what it sampled up to the first token that was guessed wrong.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np

from areal_sdk.backends.local.forward.kv_cache import Tokens

Text: TypeAlias = "array[int]"  # which has no brackets before Python 3.12

LONGEST_MATCH = 16
"""Number of matching tokens beyond which a longer match is no better."""
LONGEST_DRAFT = 16
_SURE_MATCH = 4
"""Length of a match that is followed without looking for a longer one."""
_ORDERS = (16, 8, 4, 2)
"""Lengths of the token sequences by which other answers are found, the longest first."""
_NUM_REMEMBERED = 16_384
"""Number of token sequences in each of the two generations of `Answers`: about 8 MB in all."""
_FADING = 0.995
"""Factor on the weight of earlier observations of a kind at each further one."""


class Source(IntEnum):
    CONTEXT = 0
    ANSWERS = 1


@dataclass(slots=True)
class Match:
    """A place in a text where the same tokens stand as at the end of a request."""

    source: Source
    text: Text
    next: int
    """Index of the token that follows the equal tokens."""
    length: int
    """Number of equal tokens."""


class Answers:
    """The latest answers of an engine, unfinished ones too, found by short sequences of tokens in them.

    New entries go into one dictionary. When it is full, it becomes the old one, the former old one is forgotten, and an
    empty one takes its place.
    """

    def __init__(self) -> None:
        self._new: dict[bytes, tuple[Text, int]] = {}
        self._old: dict[bytes, tuple[Text, int]] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def add(self, text: Text) -> None:
        """Remember which tokens the last token of `text` followed."""
        place = len(text) - 1
        for order in _ORDERS:
            if place >= order:
                self._new[text[place - order : place].tobytes()] = (text, place)
        if len(self._new) >= _NUM_REMEMBERED:
            self._new, self._old = {}, self._new

    def find(self, text: Text) -> Match | None:
        """The place in another answer that follows the longest known match with the end of `text`; None without a match."""
        for order in _ORDERS:
            if len(text) < order:
                continue
            key = text[-order:].tobytes()
            found, place = self._new.get(key) or self._old.get(key) or (text, 0)
            if found is not text:
                return Match(Source.ANSWERS, found, place, order)
        return None


def find_in_context(context: Text) -> Match | None:
    """The place in `context` that follows the longest match with the end of `context`: of equal matches, the latest."""
    tokens = np.frombuffer(context, dtype=np.int32)
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])
    if not len(ends):
        return None
    length = 1
    while length < min(LONGEST_MATCH, len(tokens) - 1):
        longer = ends[(ends >= length) & (tokens[ends - length] == tokens[-1 - length])]
        if not len(longer):
            break
        ends, length = longer, length + 1
    return Match(Source.CONTEXT, context, int(ends[-1]) + 1, length)


class Chances:
    """Measured chances that the token after a match is the sampled one, by source and length of the match."""

    def __init__(self) -> None:
        # Two tries that nobody made, one of them right.
        self._hits = [[1.0] * (LONGEST_MATCH + 1) for _ in Source]
        self._tries = [[2.0] * (LONGEST_MATCH + 1) for _ in Source]

    def of(self, source: Source, length: int) -> float:
        length = min(length, LONGEST_MATCH)
        return self._hits[source][length] / self._tries[source][length]

    def note(self, match: Match, *, is_hit: bool) -> None:
        length = min(match.length, LONGEST_MATCH)
        hits, tries = self._hits[match.source], self._tries[match.source]
        hits[length] = hits[length] * _FADING + is_hit
        tries[length] = tries[length] * _FADING + 1.0


class Guesser:
    """The guesses for one request."""

    def __init__(self, prompt: Tokens, answers: Answers, chances: Chances) -> None:
        self._context = array("i")
        self._context.frombytes(prompt.tobytes())
        self._text = self._context[-_ORDERS[0] :]
        """The last tokens of the prompt and the answer so far: the part of the context that other requests find."""
        self._num_noted = 0
        self._answers, self._chances = answers, chances
        self._match: Match | None = None

    def note(self, output: Sequence[int]) -> None:
        """Take the tokens of `output` that are new, and learn how good the guess at them was."""
        for token in output[self._num_noted :]:
            match = self._match
            if match is not None:
                is_hit = match.text[match.next] == token
                self._chances.note(match, is_hit=is_hit)
                match.next += 1
                match.length += 1
                if not is_hit or match.next >= len(match.text):
                    self._match = None
            self._context.append(token)
            self._text.append(token)
            self._answers.add(self._text)
        self._num_noted = len(output)

    def guess(self, *, least_chance: float, room: int) -> tuple[int, ...]:
        """The next tokens, as long as the chance that all of them are sampled is more than `least_chance`."""
        match = self._find()
        if match is None:
            return ()
        chance, num_drafted = 1.0, 0
        for length in range(match.length, match.length + min(room, LONGEST_DRAFT)):
            chance *= self._chances.of(match.source, length)
            if chance <= least_chance:
                break
            num_drafted += 1
        return tuple(match.text[match.next : match.next + num_drafted])

    def _find(self) -> Match | None:
        """The match that is likeliest to go on. A long match is kept as long as the text goes on as the match does."""
        if self._match is None or self._match.length < _SURE_MATCH:
            found = (find_in_context(self._context), self._answers.find(self._text))
            self._match = max(
                (match for match in found if match is not None),
                key=lambda match: self._chances.of(match.source, match.length),
                default=None,
            )
        return self._match
