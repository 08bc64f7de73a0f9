"""The conversations that are kept: masked, no two the same, and as the user asked."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from areal_sdk_traces.book import Book, Fate
from areal_sdk_traces.conversation import Conversation
from areal_sdk_traces.masking import Mask, masked


@dataclass(frozen=True, slots=True)
class Choice:
    """The wishes of the command's options."""

    min_score: float | None = None
    score_name: str = ""
    """The score that counts; empty: `Conversation.score` decides."""
    tags: tuple[str, ...] = ()
    """Tags that a conversation must all have."""
    users: tuple[str, ...] = ()
    """Users whose conversations are kept. Empty: those of all users."""

    def refusal_by_score(self, one: Conversation) -> str:
        """The reason why a conversation with this score was not asked for; empty if it was."""
        if self.min_score is not None:
            if one.score is None:
                named = f"no score {self.score_name!r}" if self.score_name else ""
                return f"it has {named or 'no score, or several and none was named'}"
            if one.score < self.min_score:
                return f"its score is {one.score:g}"
        return ""

    def refusal(self, one: Conversation) -> str:
        """The reason why a conversation with these tags and this user was not asked for; empty if it was."""
        if missing := [tag for tag in self.tags if tag not in one.tags]:
            return f"it has no tag {missing[0]!r}"
        if self.users and one.user not in self.users:
            return f"its user is {one.user!r}" if one.user else "it has no user"
        return ""


def chosen(
    found: Iterable[Conversation], book: Book, *, choice: Choice, mask: Mask | None
) -> Iterator[Conversation]:
    """The conversations to write. The book has the others with their reasons.

    Conversations that say the same, once they are masked, are one. It has the mean of their scores: the first score that
    somebody gave decides no more than the others.
    """
    alike: dict[str, list[tuple[Conversation, int]]] = {}
    for one in found:
        book.num_conversations += 1
        book.used(one.places)
        if choice.score_name:
            one = one.scored_by(choice.score_name)
        if reason := choice.refusal(one):
            book.write(one.places[0], Fate.FILTERED, f"{one.id}: {reason}")
            continue
        hidden, num_changed = (one, 0) if mask is None else masked(one, mask)
        alike.setdefault(hidden.digest(), []).append((hidden, num_changed))
    for (one, num_changed), *others in alike.values():
        for other, _ in others:
            book.write(other.places[0], Fate.DUPLICATE, f"{other.id} says what {one.id} says")
        one = replace(one, scores=_means([one, *(other for other, _ in others)]))
        if reason := choice.refusal_by_score(one):
            book.write(one.places[0], Fate.FILTERED, f"{one.id}: {reason}")
            continue
        book.num_masked += num_changed
        yield one


def _means(alike: Sequence[Conversation]) -> dict[str, float]:
    names = {name: None for one in alike for name in one.scores}
    return {name: fmean(one.scores[name] for one in alike if name in one.scores) for name in names}
