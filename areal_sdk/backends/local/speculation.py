"""Decides how many drafted tokens a step computes: none where that would be slower.

A step with drafts costs more than one without, and may give more tokens. Both sides are measured while the engine
runs: the cost of a drafted token from the durations of steps, and its chance from the drafts before it.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_sdk.backends.local.drafts import Answers, Chances, Guesser
from areal_sdk.backends.local.scheduler import Work

_WINDOW = 32
"""Number of steps after which drafts have shown whether they pay."""
_LONGEST_REST = 16
"""Largest number of windows without drafts, after many windows in which drafts did not pay."""
_MARGIN = 1.2
"""A drafted token must promise this many times its cost, since both are estimates."""
_FADING = 0.998
"""Factor on the weight of earlier steps' durations at each further step."""
_TRIAL_TOKENS = 4
"""Number of drafted tokens of a step that has drafts for the sake of their cost alone."""
_NUM_TRIALS = 8
"""Number of steps with drafts from which on their cost counts as known."""


class Costs:
    """Seconds of a step, as a linear function of its rows and of its drafted tokens."""

    def __init__(self) -> None:
        self._products: NDArray[np.floating[Any]] = np.eye(3) * 1e-9
        self._sums: NDArray[np.floating[Any]] = np.zeros(3)
        self._fit: NDArray[np.floating[Any]] = np.zeros(3)
        self._num_trials = 0
        self.are_known = False

    def note(self, *, rows: int, drafted: int, seconds: float) -> None:
        features = np.array([1.0, rows, drafted])
        if self.are_known:  # a step that something interrupted says nothing about drafts
            seconds = min(seconds, 3 * max(0.0, float(features @ self._fit)))
        self._num_trials += drafted > 0
        self._products = self._products * _FADING + np.outer(features, features)
        self._sums = self._sums * _FADING + features * seconds

    def refit(self) -> None:
        ridge = np.diag(np.diag(self._products)) * 1e-6
        self._fit = np.linalg.solve(self._products + ridge, self._sums)
        self.are_known = self._num_trials >= _NUM_TRIALS

    def plain(self, rows: int) -> float:
        """Seconds of a step without drafts."""
        return float(self._fit[0] + self._fit[1] * rows)

    @property
    def drafted(self) -> float:
        """Seconds that a step takes longer with one drafted token more."""
        return max(0.0, float(self._fit[2]))


@dataclass(slots=True)
class Window:
    """Sums over the steps of a window."""

    steps: int = 0
    rows: int = 0
    sampled: int = 0
    drafted: int = 0
    num_plain: int = 0
    seconds: float = 0.0
    guessing_s: float = 0.0


@dataclass(slots=True)
class Pace:
    """Decides, for one number of rows, whether steps of about that many rows have drafts, and which."""

    costs: Costs = field(default_factory=Costs)
    window: Window = field(default_factory=Window)
    rest: int = 0
    """Number of steps that still come without drafts."""
    num_rests: int = 0
    """Number of consecutive windows in which drafts did not pay."""
    tokens_per_s: float = 0.0

    @property
    def is_trial(self) -> bool:
        """Whether the next step has a few drafts for the sake of their cost alone."""
        if not self.costs.are_known:
            return self.window.steps % 4 == 3
        return self.window.steps == _WINDOW - 1 and self.window.drafted == 0

    @property
    def is_plain(self) -> bool:
        """Whether the next step has no drafts, so that the cost of a step without drafts is measured."""
        if not self.costs.are_known:
            return True
        return self.window.steps == _WINDOW - 1 and self.window.num_plain == 0

    @property
    def least_chance(self) -> float:
        return _MARGIN * self.costs.drafted * self.tokens_per_s

    def note(
        self, *, rows: int, sampled: int, drafted: int, seconds: float, guessing_s: float
    ) -> None:
        self.costs.note(rows=rows, drafted=drafted, seconds=seconds)
        window = self.window
        window.steps += 1
        window.rows += rows
        window.sampled += sampled
        window.drafted += drafted
        window.num_plain += not drafted
        window.seconds += seconds
        window.guessing_s += guessing_s
        if window.steps == _WINDOW:
            # The drafts of a window that only learns costs were chosen by nobody, so they may not end in a rest.
            was_chosen = self.costs.are_known or not window.drafted
            self.costs.refit()
            self.tokens_per_s = window.sampled / window.seconds
            if was_chosen:
                self._judge(window)
            self.window = Window()

    def _judge(self, window: Window) -> None:
        plain_s = self.costs.plain(window.rows // _WINDOW) * _WINDOW
        saved_s = (window.sampled - window.rows) * plain_s / window.rows
        if saved_s > self.costs.drafted * window.drafted + window.guessing_s:
            self.num_rests = 0
            return
        self.num_rests += 1
        self.rest = _WINDOW * min(2**self.num_rests, _LONGEST_REST)


class Speculation:
    """Gives drafts to the rows that decode."""

    def __init__(self, clock: Callable[[], float], make_pace: Callable[[], Pace] = Pace) -> None:
        """`clock` gives seconds of computing."""
        self._clock = clock
        self._answers = Answers()
        self._chances = Chances()
        self._paces: defaultdict[int, Pace] = defaultdict(make_pace)
        """The pace by the number of binary digits of the number of rows."""
        self._pace: Pace | None = None
        """The pace of the present step; None if the step is in a rest."""
        self._is_decode = False
        self._started = 0.0
        self._guessing_s = 0.0

    def with_drafts(self, work: list[Work], *, row_length: int) -> list[Work]:
        """`work` with drafts where drafts pay. Each row has room for `row_length` tokens."""
        num_rows = sum(item.is_decode for item in work)
        pace = self._paces[num_rows.bit_length()]
        self._pace = None if pace.rest else pace
        if pace.rest:
            pace.rest -= 1
            return work
        self._started, self._is_decode = self._clock(), num_rows == len(work)
        budget = num_rows * row_length
        least_chance = pace.least_chance
        if pace.is_trial:
            budget, least_chance = _TRIAL_TOKENS, 0.0
        elif pace.is_plain:
            budget = 0
        drafted: list[Work] = []
        for item in work:
            draft: tuple[int, ...] = ()
            if budget > 0 and item.is_decode:
                room = min(budget, row_length - item.sequence.num_tokens)
                draft = self._draft(item, least_chance, room=room)
                budget -= len(draft)
            drafted.append(replace(item, draft=draft) if draft else item)
        self._guessing_s = self._clock() - self._started
        return drafted

    def _draft(self, item: Work, least_chance: float, *, room: int) -> tuple[int, ...]:
        sequence = item.sequence
        if sequence.guesser is None:
            sequence.guesser = Guesser(sequence.prompt, self._answers, self._chances)
        sequence.guesser.note(sequence.output)
        num_left = sequence.stop.max_new_tokens - len(sequence.output)
        draft = sequence.guesser.guess(least_chance=least_chance, room=min(room, num_left - 1))
        if sequence.row.grammar is not None:
            draft = draft[: sequence.row.grammar.num_allowed(draft)]
        # Nothing is sampled behind the end of an answer.
        return tuple(takewhile(lambda token: token not in sequence.stop.tokens, draft))

    def note(self, work: list[Work], *, num_sampled: int) -> None:
        """Learn from a step that is done."""
        if self._pace is None:
            return
        begun = self._clock()
        for item in work:
            if item.sequence.guesser is not None:
                item.sequence.guesser.note(item.sequence.output)
        if not self._is_decode:
            return  # the cost of a step with a part of a prompt says nothing about drafts
        now = self._clock()
        self._pace.note(
            rows=len(work),
            sampled=num_sampled,
            drafted=sum(len(item.draft) for item in work),
            seconds=now - self._started,
            guessing_s=self._guessing_s + now - begun,
        )
