"""Episodes of a run, such as the sessions of `serve --record`, as conversations."""

from collections.abc import Iterator
from pathlib import Path

from areal_sdk import Episode, FinishReason, Message
from areal_sdk.records import EpisodeSummary, FollowedRun, parse_condition
from areal_sdk_traces.book import Book, Fate, Place
from areal_sdk_traces.conversation import WEIGHT, Conversation, finite
from areal_sdk_traces.graph import Graph, Origin
from areal_sdk_traces.shapes import mapping, words


def read_run(path: Path, book: Book, *, where: str = "") -> Iterator[Conversation]:
    """The conversations of the run's episodes, oldest first."""
    condition = parse_condition(where) if where else None
    run = FollowedRun(path)
    run.refresh()
    for summary in run.episodes:
        place = Place(f"{path.name}/{summary.id}", 0)
        book.saw(place)
        if condition is not None and not condition(summary):
            book.write(place, Fate.FILTERED, f"not {where}")
            continue
        yield from episode_conversations(run.record(summary).episode, place, book, summary)


def episode_conversations(
    episode: Episode, place: Place, book: Book, summary: EpisodeSummary | None = None
) -> Iterator[Conversation]:
    """One conversation a branch of the episode. An answer that was cut off is context."""
    graph = Graph(book)
    paths: list[list[Message]] = []
    tags: list[str] = []
    for turn in episode.turns:
        before = [] if turn.parent is None else paths[turn.parent]
        prompt = [*before, *turn.new_messages]
        answer = {"role": "assistant", **turn.message}
        if turn.finish_reason is not FinishReason.STOP:
            answer[WEIGHT] = 0
            book.write(place, Fate.PART_LOST, "an answer that was cut off is context")
        paths.append([*prompt, answer])
        request = mapping(turn.details.get("request") or {}, "the request")
        tags += words(request.get("metadata"))
        tools = turn.details.get("tools") or ()
        model = str(request.get("model") or "")
        is_learnt = WEIGHT not in answer
        graph.add(
            prompt if is_learnt else paths[-1],
            answer if is_learnt else None,
            places=[place],
            tools=tools,
            model=model,
        )
    if not episode.turns:
        book.write(place, Fate.DAMAGED, f"no turns: {episode.outcome.message or 'no answer'}")
        return
    reward = finite(episode.outcome.reward)
    scores = {} if reward is None else {"reward": reward}
    is_live = summary is not None and summary.split == "live"
    yield from graph.conversations(
        Origin(
            "areal-sdk",
            episode.id,
            user=episode.task.id if is_live else "",
            tags=tuple(dict.fromkeys(tags)),
            scores=scores,
        )
    )
