"""The conversations that are kept: masked, no two the same, and as the user asked."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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

    def refusal(self, one: Conversation) -> str:
        """The reason why the conversation was not asked for; empty if it was."""
        if self.min_score is not None:
            if one.score is None:
                return "it has no score, or several and none was named"
            if one.score < self.min_score:
                return f"its score is {one.score:g}"
        if missing := [tag for tag in self.tags if tag not in one.tags]:
            return f"it has no tag {missing[0]!r}"
        if self.users and one.user not in self.users:
            return f"its user is {one.user!r}" if one.user else "it has no user"
        return ""


def chosen(
    found: Iterable[Conversation], book: Book, *, choice: Choice, mask: Mask | None
) -> Iterator[Conversation]:
    """The conversations to write. The book has the others with their reasons."""
    seen: dict[str, str] = {}
    for one in found:
        book.num_conversations += 1
        book.used(one.places)
        if choice.score_name:
            one = one.scored_by(choice.score_name)
        if reason := choice.refusal(one):
            book.write(one.places[0], Fate.FILTERED, f"{one.id}: {reason}")
            continue
        digest = one.digest()
        if digest in seen:
            book.write(one.places[0], Fate.DUPLICATE, f"{one.id} says what {seen[digest]} says")
            continue
        seen[digest] = one.id
        if mask is not None:
            one, num_changed = masked(one, mask)
            book.num_masked += num_changed
        yield one
