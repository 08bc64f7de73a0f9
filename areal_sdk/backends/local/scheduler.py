"""Decides which tokens the next forward computes, and in which rows. It owns rows and prefixes.

A request waits, then runs in a KV row. Row i belongs to `running[i]`, without gaps. Every step decodes all rows that
are ready, and also prefills a bounded number of tokens, so that a long prompt does not stop the other requests. If KV
was computed before, for another request or for an earlier turn of the conversation, the scheduler copies it. So the
common prompt of a group is computed once, and a tool result costs only its own tokens.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from areal_sdk.backends.local.forward.kv_cache import (
    KVRows,
    PrefixStore,
    SavedPrefix,
    common_prefix,
)
from areal_sdk.backends.local.sequence import Sequence

WORTH_WAITING_FOR = 16
"""Length of a prefix, in tokens, from which waiting a step for it is faster than computing it again."""


@dataclass(frozen=True, slots=True)
class Work:
    """The next `num_new` tokens of the sequence in `row`, and perhaps a guess at those that follow."""

    row: int
    sequence: Sequence
    num_new: int
    draft: tuple[int, ...] = ()
    """Tokens that may be sampled next. They are computed too, so that one step can sample several tokens."""

    @property
    def reaches_end(self) -> bool:
        """Whether a token is sampled after this work."""
        return self.num_new == self.sequence.num_pending

    @property
    def is_decode(self) -> bool:
        """Whether this work is the newest token alone. A chunk of a prompt may have one token too."""
        return self.num_new == self.sequence.num_pending == 1


class Scheduler:
    def __init__(
        self,
        kv: KVRows,
        prefixes: PrefixStore,
        *,
        max_running: int,
        prefill_chunk: int,
        deterministic: bool,
    ) -> None:
        self.kv = kv
        self.prefixes = prefixes
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._max_running = max_running
        self._prefill_chunk = prefill_chunk
        self._deterministic = deterministic

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished or cancelled sequence. Its KV may serve others."""
        if sequence not in self.running:
            self.waiting.remove(sequence)
            return
        row = self.running.index(sequence)
        self._save(row)
        self._free(row)
        if not self.running:
            self.kv.shrink()

    def clear(self) -> None:
        """Forget everything, also the content of the rows: it may be NaN, and masked NaN is still NaN."""
        self.waiting.clear()
        self.running.clear()
        self.prefixes.clear()
        self.kv.reset()

    def without_kv(self) -> list[Sequence]:
        """All requests in the order of their turn, to begin again in another scheduler."""
        for sequence in self.running:
            sequence.forget_kv()
        return [*self.running, *self.waiting]

    def plan(self) -> list[Work]:
        """The work of the next step, decoding first, in row order; empty when idle."""
        self._admit()
        while len(self.running) > self.kv.rows_at(self._longest()):
            self._preempt()
        self.kv.fit(self._longest(), rows=len(self.running))
        for row, sequence in enumerate(self.running):
            if not sequence.is_placed:
                self._place(row)
        return self._choose()

    def weights_changed(self, *, keep_kv: bool) -> None:
        """Drop the saved KV. The KV of running requests is recomputed, or kept and marked."""
        self.prefixes.clear()
        for sequence in self.running:
            if not (keep_kv and sequence.output):
                sequence.forget_kv()
            elif sequence.stale_from is None:
                sequence.stale_from = len(sequence.output)

    # who runs

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_running:
            candidates = (self.waiting[0], *self.running)
            # A preempted request comes back by another path, and so with other last digits.
            longest = max(s.max_tokens if self._deterministic else s.num_tokens for s in candidates)
            if len(self.running) >= self.kv.rows_at(longest):
                return  # first come, first served: nobody overtakes a long prompt
            sequence = self.waiting.popleft()
            sequence.queued_s = sequence.queued_s or time.monotonic() - sequence.came_at
            self.running.append(sequence)

    def _longest(self) -> int:
        return max((sequence.num_tokens for sequence in self.running), default=1)

    def _preempt(self) -> None:
        """Put the youngest request back at the head of the queue, and its KV among the idle prefixes."""
        row = len(self.running) - 1
        sequence = self.running[row]
        self._save(row)
        self._free(row)
        sequence.forget_kv()
        self.waiting.appendleft(sequence)

    def _save(self, row: int) -> None:
        sequence = self.running[row]
        if self._deterministic or sequence.stale_from is not None or not sequence.num_computed:
            return
        tokens = sequence.tokens()[: sequence.num_computed]
        self.prefixes.save(SavedPrefix(tokens, self.kv.export(row, sequence.num_computed)))

    def _free(self, row: int) -> None:
        last = len(self.running) - 1
        if row != last:  # keep the rows without gaps
            self.kv.copy_prefix(last, row, self.running[last].num_computed)
            self.running[row] = self.running[last]
        self.running.pop()

    # what is not computed twice

    def _place(self, row: int) -> None:
        """Start `row` from the longest prefix that is computed, or wait for a longer one."""
        sequence = self.running[row]
        if self._deterministic:  # what others left behind must not change a result's last digits
            sequence.is_placed = True
            return
        tokens = sequence.tokens()
        usable = len(tokens) - 1  # the last token is always computed: its logits are wanted
        saved_length, saved = self.prefixes.longest(tokens)
        saved_length = min(saved_length, usable)
        donor, ready, promised = None, 0, 0
        for other_row, other in self._donors():
            shared = min(common_prefix(tokens, other.prompt), usable)
            promised = max(promised, shared)
            if min(shared, other.num_computed) > ready:
                donor, ready = other_row, min(shared, other.num_computed)
        if promised >= max(ready, saved_length) + WORTH_WAITING_FOR:
            return
        if saved is not None and saved_length >= ready:
            self.kv.restore(row, saved.values, saved_length)
            sequence.num_computed = saved_length
        elif donor is not None:
            self.kv.copy_prefix(donor, row, ready)
            sequence.num_computed = ready
        if not sequence.output:
            sequence.num_cached = sequence.num_computed
        sequence.is_placed = True

    def _donors(self) -> Iterator[tuple[int, Sequence]]:
        for row, sequence in enumerate(self.running):
            if sequence.is_placed and sequence.stale_from is None:
                yield row, sequence

    # what runs next

    def _choose(self) -> list[Work]:
        placed = [
            Work(row, sequence, sequence.num_pending)
            for row, sequence in enumerate(self.running)
            if sequence.is_placed
        ]
        if self._deterministic:
            return self._choose_deterministically(placed)
        decode = [work for work in placed if work.is_decode]
        prefill, budget = [], self._prefill_chunk
        for work in placed:
            if not work.is_decode and budget > 0:
                num_new = min(work.num_new, budget)
                prefill.append(Work(work.row, work.sequence, num_new))
                budget -= num_new
        return decode + prefill

    def _choose_deterministically(self, placed: list[Work]) -> list[Work]:
        """One prompt alone, or one token of each request: shapes that do not depend on other requests."""
        for work in placed:
            if work.num_new > 1 or not work.sequence.output:
                num_new = min(work.num_new, self._prefill_chunk)
                return [Work(work.row, work.sequence, num_new)]
        return placed
