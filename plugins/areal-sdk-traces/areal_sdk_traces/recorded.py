"""Episodes of a run, such as the sessions of `serve --record`, as conversations."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from areal_sdk import Episode, FinishReason, Message, Turn
from areal_sdk.errors import StorageError
from areal_sdk.records import EpisodeSummary, FollowedRun, parse_condition
from areal_sdk.types import Exclusion
from areal_sdk_traces.book import BadRowError, Book, Fate, Place
from areal_sdk_traces.conversation import CUT_OFF, WEIGHT, Conversation, finite
from areal_sdk_traces.feedback import Feedback, read_feedback
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.messages import Lost, calls_of, content_text, noted
from areal_sdk_traces.shapes import mapping, words


def read_run(path: Path, book: Book, *, where: str = "") -> Iterator[Conversation]:
    """The conversations of the run's episodes, oldest first."""
    said = read_feedback(path)
    for episode, summary, place in read_episodes(path, book, where=where):
        for one in episode_conversations(episode, place, book, summary):
            one = replace(one, data=episode.task.data)
            yield with_feedback(one, said.get(episode.id))
        if episode.id in said and said[episode.id].turn_scores:
            book.write(place, Fate.PART_LOST, "the scores of single turns")


def with_feedback(one: Conversation, said: Feedback | None) -> Conversation:
    """The conversation with the scores and comments that users gave to its session."""
    if said is None:
        return one
    return replace(one, scores={**said.scores, **one.scores}, comments=tuple(said.comments))


def read_episodes(
    path: Path, book: Book, *, where: str = ""
) -> Iterator[tuple[Episode, EpisodeSummary, Place]]:
    """The run's episodes that meet the condition, oldest first."""
    condition = parse_condition(where) if where else None
    run = FollowedRun(path)
    run.refresh()
    if run.num_unreadable:
        what = f"{run.num_unreadable} lines of its metrics or its index cannot be read"
        book.write(Place(path.name, 0, "index"), Fate.DAMAGED, f"{what}: episodes may be missing")
    for summary in run.episodes:
        place = Place(f"{path.name}/{summary.id}", 0)
        book.saw(place)
        if condition is not None and not condition(summary):
            book.write(place, Fate.FILTERED, f"not {where}")
            continue
        with book.guarding(place):
            try:
                episode = run.record(summary).episode
            except StorageError as exc:
                raise BadRowError(str(exc)) from None
            yield _with_functions(episode), summary, place


def episode_conversations(
    episode: Episode, place: Place, book: Book, summary: EpisodeSummary | None = None
) -> Iterator[Conversation]:
    """One conversation a branch of the episode. An answer that was cut off is context."""
    graph = Graph(book)
    lost = book.losing(place)
    is_live = summary is not None and summary.split == "live"
    tags = [*words(episode.task.data)] if is_live else []
    has_several = len({turn.policy for turn in episode.turns}) > 1
    for index, turn in enumerate(episode.turns):
        *prompt, answer = (_in_text(message, lost) for message in path_to(episode, index))
        if turn.finish_reason is not FinishReason.STOP:
            answer[WEIGHT] = 0
            book.write(place, Fate.PART_LOST, CUT_OFF)
        request = mapping(turn.details.get("request") or {}, "the request")
        tags += words(request.get("metadata"))
        tools = turn.details.get("tools") or ()
        model = turn.policy or str(request.get("model") or "")
        own = finite(episode.outcome.by_policy.get(turn.policy))
        if own is None and turn.excluded is Exclusion.FROZEN_POLICY and has_several:
            answer[WEIGHT] = 0  # the reward is not that of an opponent
        is_learnt = WEIGHT not in answer
        graph.add(
            prompt if is_learnt else [*prompt, answer],
            answer if is_learnt else None,
            places=[place],
            tools=tools,
            scores={} if own is None else {"reward": own},
            model=model,
            turn=index,
        )
    if not episode.turns:
        book.write(place, Fate.DAMAGED, f"no turns: {episode.outcome.message or 'no answer'}")
        return
    reward = finite(episode.outcome.reward)
    scores = {} if reward is None else {"reward": reward}
    yield from graph.conversations(
        Origin(
            "areal-sdk",
            episode.id,
            user=episode.task.id if is_live else "",
            tags=tuple(dict.fromkeys(tags)),
            scores=scores,
        )
    )


def path_to(episode: Episode, turn: int) -> list[Message]:
    """The messages of a turn's branch as they were recorded, from the first to the turn's answer."""
    chain: list[Turn] = []
    index: int | None = turn
    while index is not None:
        chain.append(episode.turns[index])
        index = chain[-1].parent
    return [
        message
        for one in reversed(chain)
        for message in (*one.new_messages, {"role": "assistant", **one.message})
    ]


def _with_functions(episode: Episode) -> Episode:
    """The episode with each tool call as the call of a function. A client may send custom calls, or bare ones."""
    turns = [
        replace(
            turn,
            message=_calling_functions(turn.message),
            new_messages=tuple(map(_calling_functions, turn.new_messages)),
        )
        for turn in episode.turns
    ]
    return replace(episode, turns=tuple(turns))


def _calling_functions(message: Message) -> Message:
    calls = message.get("tool_calls") or ()
    if all(isinstance(call.get("function"), Mapping) for call in calls):
        return message
    return {**message, "tool_calls": calls_of(message)}


def _in_text(message: Message, lost: Lost) -> Message:
    """The message with its text alone. `serve --upstream` keeps images too."""
    if not isinstance(message.get("content"), list):
        return message
    missing: list[str] = []
    text = content_text(message["content"], missing.append)
    (found,) = noted([{**message, "content": text}], missing, lost)
    return found
