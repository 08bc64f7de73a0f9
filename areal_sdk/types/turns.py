"""Turns: the calls of the model in tokens, each stored once, however many later turns begin with it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar

Message = dict[str, Any]
"""One OpenAI chat message."""

Tool = dict[str, Any]
"""One OpenAI tool definition: `{"type": "function", "function": {...}}`."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class ForkReason(StrEnum):
    """The reason why a turn does not continue the turn that its client meant to continue."""

    SYSTEM_CHANGED = "system_changed"
    TOOLS_CHANGED = "tools_changed"
    ARGS_CHANGED = "args_changed"
    EDITED = "edited"
    COMPACTION = "compaction"
    SUBAGENT = "subagent"
    RESAMPLED = "resampled"
    THINKING_DROPPED = "thinking_dropped"
    TEMPLATE_UNSTABLE = "template_unstable"


class Exclusion(StrEnum):
    """The reason why a turn's sampled tokens are context only.

    Their logprob is not the policy's, or the run does not train such turns (`side_call`) or their policy.
    """

    GREEDY = "greedy"
    TRUNCATED_DISTRIBUTION = "truncated_distribution"
    PENALTY = "penalty"
    LOGIT_BIAS = "logit_bias"
    GRAMMAR = "grammar"
    NO_LOGPROBS = "no_logprobs"
    SIDE_CALL = "side_call"
    FROZEN_POLICY = "frozen_policy"


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call, in tokens, exactly as the engine saw and produced it.

    If the prompt begins like an earlier turn of the episode, only the rest of it is kept: a long conversation is stored
    once, and so is the common beginning of its branches. Turns are equal if their prompts are, however they are kept.
    """

    new_tokens: tuple[int, ...] = field(compare=False)
    """The prompt after its first `num_shared` tokens."""
    output_tokens: tuple[int, ...]
    """Every sampled token, stop tokens and tokens hidden by a stop string included."""
    logprobs: tuple[float, ...]
    """log softmax(logits / temperature) of each output token under the version that sampled it."""
    versions: tuple[int, ...]
    """Policy version that sampled each output token; weights may change mid-turn."""
    message: Message = field(default_factory=dict)
    """The assistant message as the client received it."""
    new_messages: tuple[Message, ...] = ()
    """The messages that the client added since the parent turn; all messages for a first turn."""
    temperature: float = 1.0
    finish_reason: FinishReason = FinishReason.STOP
    parent: int | None = None
    """Index, in the episode, of the turn whose prompt + output this prompt starts with."""
    fork: ForkReason | None = None
    """The reason why the client's history continues no recorded turn as it was; None if it does, or if there is no history."""
    excluded: Exclusion | None = None
    policy: str = ""
    """Name of the policy that sampled the turn, in a run with several (`[policy.NAME]`)."""
    num_stale_kv: int = 0
    """Trailing output tokens sampled on KV of older weights (engine option `kv_on_update = "keep"`)."""
    duration_s: float = 0.0
    began_s: float = field(default=0.0, compare=False)
    """Seconds from the opening of the session to the request. The time between two turns is the agent's own."""
    first_token_s: float = field(default=0.0, compare=False)
    """Seconds from the request to its first token: the wait for a slot, and prefill."""
    queued_s: float = field(default=0.0, compare=False)
    """The part of `first_token_s` for which the request waited for a slot; 0 if the engine does not report it."""
    num_cached: int = field(default=0, compare=False)
    """Tokens of the prompt that the engine did not compute again."""
    offers_tools: bool = field(default=False, compare=False)
    """Whether the request had tools that the model could call."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The offered `tools`, if this turn begins a conversation with some. A call that another
    provider answered also has `request` (model, sampling, metadata) and `usage`."""
    num_shared: int = field(default=0, compare=False)
    """Tokens at the start of the prompt that are kept with the turn `shares_with`."""
    shares_with: int | None = field(default=None, compare=False)
    """Index, in the episode, of the turn that begins with the same `num_shared` tokens: the parent,
    or a turn that the prompt forks from."""
    num_prompt: int = field(init=False)
    """Tokens of the whole prompt."""
    _before: "Turn | None" = field(default=None, repr=False, compare=False)
    """The turn `shares_with`. A turn that is pickled alone holds its whole prompt instead."""

    def __post_init__(self) -> None:
        lengths = {len(self.output_tokens), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"output_tokens, logprobs and versions differ in length: {lengths}")
        most = 0 if self._before is None else self._before.num_tokens
        if not 0 <= self.num_shared <= most:
            raise ValueError(f"num_shared = {self.num_shared}: the turn before has {most} tokens")
        object.__setattr__(self, "num_prompt", self.num_shared + len(self.new_tokens))

    # Not `__getstate__`: early versions of Python 3.11 put that of dataclasses in its place.
    def __reduce__(self) -> tuple[Any, ...]:
        whole = self.prompt_tokens
        alone = state_of(self, new_tokens=whole, num_shared=0, shares_with=None, _before=None)
        return restored, (Turn, alone)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn):
            return NotImplemented
        compared = (f.name for f in fields(self) if f.compare)
        return self is other or (
            all(getattr(self, name) == getattr(other, name) for name in compared)
            and self.prompt_tokens == other.prompt_tokens
        )

    def __repr__(self) -> str:
        """A summary for people; `dataclasses.asdict` has the tokens."""
        sampled = f"{self.num_prompt} + {len(self.output_tokens)} tokens"
        calls = [str(call["function"]["name"]) for call in self.message.get("tool_calls") or ()]
        called = f", calls {', '.join(calls)}" if calls else ""
        return f"<Turn {sampled}, {self.finish_reason}{called}: {excerpt(self.text)}>"

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + len(self.output_tokens)

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """All tokens of the prompt."""
        return self._prompt_from(0)

    def _prompt_from(self, start: int) -> tuple[int, ...]:
        """The prompt without its first `start` tokens."""
        pieces = [self.new_tokens[max(start - self.num_shared, 0) :]]
        stop, turn = self.num_shared, self._before
        while stop > start:
            assert turn is not None, "a turn before keeps the shared tokens"
            kept = turn.num_shared
            if stop > kept:
                first = max(start, kept)
                said = max(first - turn.num_prompt, 0), max(stop - turn.num_prompt, 0)
                pieces.append(turn.output_tokens[slice(*said)])
                pieces.append(turn.new_tokens[first - kept : stop - kept])
                stop = kept
            turn = turn._before
        tokens: list[int] = []
        for piece in reversed(pieces):
            tokens += piece
        return tuple(tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The whole prompt and the output."""
        return self.prompt_tokens + self.output_tokens

    def tokens_from(self, start: int) -> tuple[int, ...]:
        """The whole prompt and the output without the first `start` tokens of both."""
        return self._prompt_from(start) + self.output_tokens[max(start - self.num_prompt, 0) :]

    def extends(self, other: "Turn") -> bool:
        """Whether the prompt begins with all tokens of `other`."""
        shared, turn = self.num_shared, self._before
        while turn is not None and turn is not other:
            shared, turn = min(shared, turn.num_shared), turn._before
        if turn is not None and shared == other.num_tokens:
            return True
        return self.prompt_tokens[: other.num_tokens] == other.tokens

    @property
    def text(self) -> str:
        """The text the client saw; empty when the turn was only a tool call."""
        return str(self.message.get("content") or "")


def linked(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns of an episode, changed so that each shares tokens only with a turn before it in `turns`.

    An agent may have left turns out: a turn that shared tokens with one of these then holds the tokens itself.
    """
    kept: list[Turn] = []
    places: dict[tuple[int, ...], int] = {}
    for turn in turns:
        shared, before = turn.num_shared, turn._before
        while before is not None and _identity(before) not in places:
            shared, before = min(shared, before.num_shared), before._before
        place = places[_identity(before)] if before is not None and shared else None
        now = None if place is None else kept[place]
        places.setdefault(_identity(turn), len(kept))
        if now is not turn._before or place != turn.shares_with:
            start = 0 if now is None else shared
            new = turn._prompt_from(start)
            turn = replace(turn, new_tokens=new, num_shared=start, shares_with=place, _before=now)
        kept.append(turn)
    return tuple(kept)


def _identity(turn: Turn) -> tuple[int, ...]:
    """A key that a turn has in common with its copies by `dataclasses.replace`, if these keep its tokens."""
    return id(turn.new_tokens), id(turn.output_tokens), turn.num_shared, id(turn._before)


def recorded_indices(turns: Sequence[Turn], recorded: Sequence[Turn]) -> tuple[int, ...]:
    """Index of each turn among the recorded turns. ValueError if a turn is not among them, or is repeated.

    Otherwise a token would be trained twice, or with a logprob that it was not sampled with. An agent may
    change the message and the parent of a turn, and exclude it; it may not undo an exclusion.
    """
    unused = sorted(range(len(recorded)), key=lambda index: _freedom(recorded[index]))
    found: list[int] = []
    for index, turn in enumerate(turns):
        # Of equal turns, an excluded one must not take the place of one that is trained.
        order = unused if turn.excluded is not None else reversed(unused)
        place = next((known for known in order if _is_sampled_as(turn, recorded[known])), None)
        if place is None:
            raise ValueError(
                f"turn {index} was not sampled like this, or is there twice: choose among "
                "context.turns; of a turn only message and parent may change"
            )
        unused.remove(place)
        found.append(place)
    return tuple(found)


def _freedom(turn: Turn) -> int:
    if turn.excluded is None:
        return 2
    return 1 if turn.excluded is Exclusion.SIDE_CALL else 0


def _is_sampled_as(turn: Turn, known: Turn) -> bool:
    if turn is known:
        return True
    return (
        turn.output_tokens == known.output_tokens
        and turn.logprobs == known.logprobs
        and turn.versions == known.versions
        and turn.policy == known.policy
        and turn.temperature == known.temperature
        and (
            isinstance(turn.excluded, Exclusion)
            or (turn.excluded is None and known.excluded in (None, Exclusion.SIDE_CALL))
        )
        and turn.prompt_tokens == known.prompt_tokens
    )


def alternatives(turns: Sequence[Turn]) -> tuple[tuple[int, ...], ...]:
    """The later turns, for each turn, that are not its consequence; empty if no turn has such turns.

    >>> one, other = (Turn((1, 2), (token,), (-0.5,), (0,)) for token in (3, 4))
    >>> alternatives([one, other])
    ((1,), ())
    """
    prompts = _prompts(turns)
    repeated = {prompt for prompt, count in Counter(prompts).items() if count > 1}
    if not repeated:
        return ()
    paths: list[dict[int, int]] = []
    """The answers, for each turn, that it is or continues: indices of turns, by the prompt that was asked repeatedly."""
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
    """The index of the first turn with the same prompt, for each turn."""
    known: dict[tuple[int | None, int, str], list[int]] = {}
    """The turns with distinct prompts, by parent, length and policy, so that few prompts are compared in full."""
    first: list[int] = []
    for index, turn in enumerate(turns):
        alike = known.setdefault((turn.parent, turn.num_prompt, turn.policy), [])
        same = (i for i in alike if turns[i].prompt_tokens == turn.prompt_tokens)
        first.append(next(same, index))
        if first[-1] == index:
            alike.append(index)
    return first


def excerpt(text: str, *, most: int = 60) -> str:
    """The text in quotes and on one line, cut if it is long.

    >>> excerpt("yes\\n"), excerpt("a" * 99, most=4)
    ("'yes\\\\n'", "'aaaa'...")
    """
    return repr(text) if len(text) <= most else f"{text[:most]!r}..."


def pack_turns(turns: Sequence[Turn]) -> list[list[Any]]:
    """Linked turns as rows for a pickle, which holds tokens that turns share only once."""
    return [state_of(turn, _before=None) for turn in turns]


def unpack_turns(rows: Sequence[list[Any]], known: Sequence[Turn] = ()) -> list[Turn]:
    """The turns that `pack_turns` packed. In their episode they follow the turns `known`."""
    turns = [*known]
    for row in rows:
        turn = restored(Turn, row)
        if turn.shares_with is not None:
            object.__setattr__(turn, "_before", turns[turn.shares_with])
        turns.append(turn)
    return turns[len(known) :]


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


_Item = TypeVar("_Item", bound=_Dataclass)


def state_of(item: _Dataclass, **changed: Any) -> list[Any]:
    """The values of an object's fields for a pickle, some of them changed."""
    return [changed[n] if n in changed else getattr(item, n) for n in item.__dataclass_fields__]


def restored(kind: type[_Item], state: Sequence[Any]) -> _Item:
    """An object with the values of its fields from `state_of`. `__init__` does not run."""
    item = object.__new__(kind)
    for name, value in zip(kind.__dataclass_fields__, state, strict=True):
        object.__setattr__(item, name, value)
    return item
