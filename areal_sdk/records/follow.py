"""A run in memory that is read incrementally, for programs that show runs.

`Run` reads all files again at each call. `FollowedRun` reads what was appended since the last `refresh`, so a look
at a run of 100,000 episodes costs as much as its newest lines. Only a resume, which undoes some of the run, and
`run.keep_episodes`, which deletes the oldest files, make it read all of the index again.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_sdk.records.diagnosis.verdict import RunVerdict, verdict_of_run
from areal_sdk.records.diagnosis.why import Diagnosis, why
from areal_sdk.records.tokens import EpisodeTokens, episode_tokens
from areal_sdk.telemetry import EpisodeRecord, EpisodeSummary, RunDir
from areal_sdk.telemetry.episode_files import read_record, whole_bytes
from areal_sdk.telemetry.episode_log import list_episodes, read_appended, read_episode
from areal_sdk.telemetry.files import read_json_lines
from areal_sdk.telemetry.metrics import add_event
from areal_sdk.telemetry.token_log import StepTokens

Event = dict[str, Any]


class FollowedRun:
    """The events and the episode summaries of one run. Calls of `refresh` must not overlap."""

    def __init__(self, path: str | Path) -> None:
        """ConfigError if `path` is no run directory."""
        self.run_dir = RunDir.open(Path(path))
        self.events: list[Event] = []
        """The events that count, as `RunDir.read_history` returns them."""
        self.num_resumes = 0
        """Number of resumes among the events. A new resume may have removed events."""
        self.episodes: list[EpisodeSummary] = []
        """The episodes, oldest first, without those that a resume undid."""
        self._places: dict[str, int] = {}
        """The place in `episodes` of the newest one of each id."""
        self._sizes: Mapping[str, int] = {}
        self._events_end = 0
        self._tokens: tuple[tuple[int, int], StepTokens | None] | None = None
        """The tokens of the step that was read last, for the siblings of its episodes. A resume may take the step
        again."""

    def refresh(self) -> None:
        """Read what was appended to the metrics and to the index of the episodes."""
        for end, event in read_json_lines(self.run_dir.metrics, offset=self._events_end):
            add_event(self.events, event)
            self.num_resumes += event["kind"] == "resume"
            self._events_end = end
        sizes = whole_bytes(self.run_dir.episodes)
        is_new = not self._sizes or not self._sizes.keys() <= sizes.keys()
        if is_new or not self._read_on(sizes):
            self.episodes = [*list_episodes(self.run_dir.episodes, until=sizes)][::-1]
            self._places = {one.id: place for place, one in enumerate(self.episodes)}
        self._sizes = sizes

    def _read_on(self, sizes: Mapping[str, int]) -> bool:
        """Add the lines up to `sizes`; False if the run was resumed there."""
        if sizes == self._sizes:
            return True
        start = len(self.episodes)
        for added in read_appended(self.run_dir.episodes, self._sizes, sizes):
            if added is None:
                return False
            if isinstance(added, EpisodeSummary):
                self._places[added.id] = len(self.episodes)
                self.episodes.append(added)
                continue
            name, mark = added
            if (place := self._places.get(name)) is not None:
                self.episodes[place] = replace(self.episodes[place], **mark)
        # Evaluations have files of their own, which were read after the others.
        self.episodes[start:] = sorted(self.episodes[start:], key=lambda one: one.time)
        self._places |= {one.id: start + n for n, one in enumerate(self.episodes[start:])}
        return True

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
        file = self.run_dir.episodes / summary.file
        return read_record(file, summary.offset, summary.length)

    def verdict(self) -> RunVerdict | None:
        """The verdict that `areal-sdk inspect` prints."""
        return verdict_of_run(self.run_dir)

    def why(self) -> Diagnosis:
        """The findings that `areal-sdk why` prints. Reads the whole index."""
        return why(self.run_dir)
