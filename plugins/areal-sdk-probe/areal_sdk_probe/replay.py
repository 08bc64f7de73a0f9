"""The engine `replay`: it answers every request from a recorded run, so that its episodes are played and scored again."""

import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from areal_sdk import (
    EngineError,
    EngineInfo,
    Episode,
    FinishReason,
    GenerateChunk,
    GenerateRequest,
    InferenceEngine,
    Run,
    Turn,
    WeightUpdate,
)
from areal_sdk.engine import ConfiguredEngine, EngineSettings


class ReplayEngine(ConfiguredEngine):
    """`[engine.replay]`: `run` is the directory of the recorded run. No model is loaded."""

    is_repeatable = True

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> InferenceEngine:
        run = Run(settings.options["run"])
        return cls(run.whole(run.episodes()), settings.model_dir)

    def __init__(self, episodes: Iterable[Episode], model_dir: Path) -> None:
        self._answers: defaultdict[tuple[int, ...], deque[Turn]] = defaultdict(deque)
        for episode in episodes:
            for turn in episode.turns:
                self._answers[turn.prompt_tokens].append(turn)
        self._info = _info(model_dir)

    async def start(self) -> None:
        """Nothing has to start."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def version(self) -> int:
        return 0

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """The recorded answer to the same prompt. Siblings with the same prompt get their answers in turns."""
        answers = self._answers.get(request.tokens)
        if answers is None:
            raise EngineError(
                "the episode left its record: its prompt is none of the recorded ones, because its agent or "
                "environment depends on time or chance"
            )
        turn = answers[0]
        answers.rotate(-1)
        yield GenerateChunk(
            turn.output_tokens,
            turn.logprobs,
            turn.versions,
            finish_reason=turn.finish_reason,
            stop_matched=self._stop(turn, request),
        )

    def _stop(self, turn: Turn, request: GenerateRequest) -> str | int | None:
        """The stop that ended the answer. The record does not say which of several stop strings did."""
        if turn.finish_reason is not FinishReason.STOP or not turn.output_tokens:
            return None
        last = turn.output_tokens[-1]
        is_token = last in (*self._info.stop_tokens, *request.stop_tokens) or not request.stop
        return last if is_token else request.stop[0]

    async def update_weights(self, update: WeightUpdate) -> None:
        raise EngineError("the engine 'replay' answers from a record, and takes no weights")

    async def aclose(self) -> None:
        """Nothing has to close."""


def _info(directory: Path) -> EngineInfo:
    config = _json(directory / "config.json")
    text = config.get("text_config") or config
    stops: set[int] = set()
    for source in (text, _json(directory / "generation_config.json")):
        eos = source.get("eos_token_id")
        stops.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
    return EngineInfo(
        model=str(directory),
        max_context=int(text["max_position_embeddings"]),
        vocab_size=int(text["vocab_size"]),
        stop_tokens=tuple(sorted(stops)),
        constrains_json=True,
    )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
