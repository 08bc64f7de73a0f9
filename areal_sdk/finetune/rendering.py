"""Rows as tokens, exactly as the gateway would render them, and the rows that were left out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from areal_sdk.gateway.errors import ApiError, TemplateRefusalError
from areal_sdk.gateway.tokens.demonstrations import as_context, to_demonstrations
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.loop.plan.demonstrations import Remarks, for_template, lines_of
from areal_sdk.loop.plan.rows import Conversation, Pair
from areal_sdk.trainer import Demonstration
from areal_sdk.types import Message

NO_TEXT = "with content that is no text, such as an image"
"""The reason to leave out a recorded conversation of another provider. In a data file it is an error."""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """Two sequences to compare. `loss_mask` of each marks its answer, and not the tokens before the answer."""

    chosen: Demonstration
    rejected: Demonstration

    @property
    def lengths(self) -> tuple[int, int]:
        """Number of tokens of the chosen answer, and of the rejected one."""
        return self.chosen.num_trained, self.rejected.num_trained


T = TypeVar("T", Demonstration, TokenPair)


@dataclass(slots=True)
class Dataset(Generic[T]):
    """The trained rows as tokens, and the number of rows that were left out, by reason."""

    rows: list[T] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Places of the rows that were left out, by reason."""
    remarks: Remarks = field(default_factory=dict)
    """Remarks on rows that are trained, or would be if they were not left out."""

    def add(self, more: "Dataset[T]") -> None:
        self.rows += more.rows
        for why, places in more.left_out.items():
            self.left_out.setdefault(why, []).extend(places)
        for what, places in more.remarks.items():
            self.remarks.setdefault(what, []).extend(places)

    def leave_out(self, why: str, where: str) -> None:
        self.left_out.setdefault(why, []).append(where)

    @property
    def num_trained(self) -> int:
        """Number of tokens in all answers."""
        return sum(_num_trained(row) for row in self.rows)

    def add_if_usable(self, row: T, where: str, *, max_tokens: int) -> None:
        sequences = (row,) if isinstance(row, Demonstration) else (row.chosen, row.rejected)
        if max(len(sequence.tokens) for sequence in sequences) > max_tokens:
            self.leave_out(f"longer than {max_tokens} tokens (finetune.max_tokens)", where)
        elif not all(sequence.num_trained for sequence in sequences):
            self.leave_out("without a token to train", where)
        elif isinstance(row, TokenPair) and row.chosen.tokens == row.rejected.tokens:
            self.leave_out("both answers are the same", where)
        else:
            self.rows.append(row)

    def notes(self) -> list[str]:
        """A line for each reason to leave out rows, and for each remark. Each line names the first such row."""
        left_out = {f"left out, {why}": places for why, places in self.left_out.items()}
        return lines_of({**left_out, **self.remarks})


def _num_trained(row: Demonstration | TokenPair) -> int:
    return row.num_trained if isinstance(row, Demonstration) else sum(row.lengths)


def render_conversations(
    rows: Iterable[Conversation], renderer: Renderer, *, max_tokens: int
) -> Dataset[Demonstration]:
    found: Dataset[Demonstration] = Dataset()
    for given in rows:
        row = for_template(given, renderer, found.remarks)
        try:
            sequences = to_demonstrations(row.messages, renderer, tools=row.tools)
        except TemplateRefusalError as exc:
            found.leave_out(f"refused by the chat template ({exc})", row.where)
            continue
        except ApiError:
            found.leave_out(NO_TEXT, row.where)
            continue
        if not sequences:
            found.leave_out("without a token to train", row.where)
        for sequence in sequences:
            found.add_if_usable(sequence, row.where, max_tokens=max_tokens)
    return found


def render_pairs(
    rows: Iterable[Pair], renderer: Renderer, *, max_tokens: int
) -> Dataset[TokenPair]:
    found: Dataset[TokenPair] = Dataset()
    for given in rows:
        row = for_template(given, renderer, found.remarks)
        try:
            pair = TokenPair(
                _answered(row, row.chosen, renderer), _answered(row, row.rejected, renderer)
            )
        except TemplateRefusalError as exc:
            found.leave_out(f"refused by the chat template ({exc})", row.where)
        except ApiError:
            found.leave_out(NO_TEXT, row.where)
        else:
            found.add_if_usable(pair, row.where, max_tokens=max_tokens)
    return found


def _answered(row: Pair, answer: Sequence[Message], renderer: Renderer) -> Demonstration:
    """The pair's messages with one of its answers, as one sequence."""
    messages = [*as_context(row.messages), *answer]
    sequences = to_demonstrations(messages, renderer, tools=row.tools)
    if len(sequences) != 1:
        raise TemplateRefusalError("it does not keep the turns of an answer in one sequence")
    return sequences[0]
