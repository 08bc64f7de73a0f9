"""A run in memory that is read incrementally, for programs that show runs.

`Run` reads all files again at each call. `FollowedRun` reads what was appended since the last `refresh`, so a look
at a run of 100,000 episodes costs as much as its newest lines. Only a resume, which undoes some of the run, and
`run.keep_episodes`, which deletes the oldest files, make it read all of the index again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_sdk.records.diagnosis.verdict import RunVerdict, verdict_of_run
from areal_sdk.records.diagnosis.why import Diagnosis, why
from areal_sdk.records.tokens import EpisodeTokens, episode_tokens
from areal_sdk.telemetry import EpisodeRecord, EpisodeSummary, RunDir
from areal_sdk.telemetry.episode_files import whole_bytes
from areal_sdk.telemetry.episode_log import list_episodes, read_appended, read_episode, read_text
from areal_sdk.telemetry.files import read_json_lines
from areal_sdk.telemetry.metrics import add_event, is_event
from areal_sdk.telemetry.token_log import StepTokens

Event = dict[str, Any]
Added = EpisodeSummary | tuple[str, dict[str, Any]]
"""A new episode, or the id of an earlier one with the fields of its summary that changed."""


class FollowedRun:
    """The events and the episode summaries of one run. Calls of `refresh` must not overlap."""

    def __init__(self, path: str | Path) -> None:
        """Raise ConfigError if `path` is no run directory."""
        self.run_dir = RunDir.open(Path(path))
        self.events: list[Event] = []
        """The events that count, as `RunDir.read_history` returns them."""
        self.num_resumes = 0
        """Number of resumes among the events. A new resume may have removed events."""
        self.episodes: list[EpisodeSummary] = []
        """The episodes, oldest first, without those that a resume undid."""
        self._places: dict[str, int] = {}
        """Index in `episodes` of the newest episode with each id."""
        self._sizes: Mapping[str, int] = {}
        self._events_end = 0
        self._num_unreadable = 0, 0
        """Numbers of lines that could not be read: of the metrics, and of the index."""
        self._tokens: tuple[tuple[int, int], StepTokens | None] | None = None
        """The step and the number of resumes at the latest call of `tokens`, and the tokens of this step: the next
        call is often about a sibling."""

    @property
    def num_unreadable(self) -> int:
        """Number of lines that are left out, because they are damaged or of a newer version."""
        return sum(self._num_unreadable)

    def refresh(self) -> None:
        """Read what was appended to the metrics and to the index of the episodes.

        Everything is read before anything is changed, so a refresh that failed can be tried again.
        """
        lines = [*read_json_lines(self.run_dir.metrics, offset=self._events_end)]
        sizes = whole_bytes(self.run_dir.episodes)
        unreadable: list[Any] = []
        added = self._appended(sizes, unreadable)
        events, of_index = self._num_unreadable
        if added is not None:
            self._add(added)
        else:
            self.episodes, of_index = self._read_anew(sizes, unreadable), 0
            self._places = {one.id: place for place, one in enumerate(self.episodes)}
        self._sizes = sizes
        for end, event in lines:
            if is_event(event):
                add_event(self.events, event)
                self.num_resumes += event["kind"] == "resume"
            else:
                events += 1
            self._events_end = end
        self._num_unreadable = events, of_index + len(unreadable)

    def _appended(self, sizes: Mapping[str, int], unreadable: list[Any]) -> list[Added] | None:
        """The additions to the index up to `sizes`, in bytes of its files; None if the whole index must be read again."""
        if not self._sizes or not self._sizes.keys() <= sizes.keys():
            return None
        if sizes == self._sizes:
            return []
        added: list[Added] = []
        directory = self.run_dir.episodes
        for one in read_appended(directory, self._sizes, sizes, on_unreadable=unreadable.append):
            if one is None:
                return None
            added.append(one)
        return added

    def _read_anew(self, sizes: Mapping[str, int], unreadable: list[Any]) -> list[EpisodeSummary]:
        unreadable.clear()
        directory = self.run_dir.episodes
        return [*list_episodes(directory, until=sizes, on_unreadable=unreadable.append)][::-1]

    def _add(self, added: Sequence[Added]) -> None:
        start = len(self.episodes)
        for one in added:
            if isinstance(one, EpisodeSummary):
                self._places[one.id] = len(self.episodes)
                self.episodes.append(one)
                continue
            name, mark = one
            if (place := self._places.get(name)) is not None:
                self.episodes[place] = self.episodes[place]._replace(**mark)
        # Evaluations have files of their own, which were read after the others.
        self.episodes[start:] = sorted(self.episodes[start:], key=lambda one: one.time)
        self._places |= {one.id: start + n for n, one in enumerate(self.episodes[start:])}

    def find(self, episode_id: str) -> EpisodeSummary | None:
        """The newest episode of this id."""
        place = self._places.get(episode_id)
        return None if place is None else self.episodes[place]

    def record(self, summary: EpisodeSummary) -> EpisodeRecord:
        """The whole episode. StorageError if its file is gone or damaged."""
        return read_episode(self.run_dir.episodes, summary)

    def tokens(self, record: EpisodeRecord) -> EpisodeTokens | None:
        """The record of an episode's tokens in the step that trained it; None if no step did, or if the step's file
        is gone."""
        if record.step is None:
            return None
        place = record.step, self.num_resumes
        if self._tokens is None or self._tokens[0] != place:
            self._tokens = place, self.run_dir.read_tokens(record.step)
        tokens = self._tokens[1]
        return None if tokens is None else episode_tokens(record.episode, tokens, step=record.step)

    def text(self, summary: EpisodeSummary) -> bytes:
        """The record of the episode as JSON, to be searched. StorageError if its file is gone or damaged."""
        return read_text(self.run_dir.episodes, summary)

    def verdict(self) -> RunVerdict | None:
        """The verdict that `areal-sdk inspect` prints."""
        return verdict_of_run(self.run_dir)

    def why(self) -> Diagnosis:
        """The findings that `areal-sdk why` prints. Reads the whole index."""
        return why(self.run_dir)
