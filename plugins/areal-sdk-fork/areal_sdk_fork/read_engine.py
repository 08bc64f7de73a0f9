"""The engine `reread`: it answers every turn with the recorded tokens, and asks another engine how likely each of them is.

An engine has no call that scores a text. A bias that leaves no choice does the same: logprobs are those of the whole
distribution, whatever restricts the choice.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from areal_sdk import (
    EngineError,
    Episode,
    EpisodeContext,
    FinishReason,
    GenerateChunk,
    GenerateRequest,
    InferenceEngine,
    RolloutWorkflow,
    Run,
    Task,
    Turn,
)
from areal_sdk.engine import EngineSettings, Sampling
from areal_sdk_fork.before import EngineBefore, engine_behind
from areal_sdk_fork.vocabulary import FILE as TOKENIZER
from areal_sdk_fork.vocabulary import check_tokenizer

NO_CHOICE = 1000.0
"""Bias of a token that leaves no other one."""
NUM_LIKELIEST = 4
"""Number of tokens that are kept at each place, the likeliest first."""
AT_ONCE = 32
"""Number of requests in flight. They share their beginning, so together they cost little more than one."""
CERTAIN = -1e-6
"""Logprob that no reading of real text has at every token."""


class Rereader(RolloutWorkflow):
    """Asks for every recorded turn of an episode again, in their order."""

    async def run_episode(self, task: Task, context: EpisodeContext) -> float:
        for turn in turns_with_tokens(Run(task.data["run"]).episode(task.data["episode"])):
            await context.generate(turn.prompt_tokens, max_new_tokens=len(turn.output_tokens))
        return 0.0


class RereadEngine(EngineBefore):
    """`[engine.reread]`: `run` and `episode` name the text; `output` the file that gets a line a turn; `engine` and
    `options` the engine that reads."""

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> InferenceEngine:
        asked = settings.options
        run = Run(asked["run"])
        turns = turns_with_tokens(run.episode(asked["episode"]))
        check_tokenizer(turns, settings.model_dir, recorded=run.path / "model" / TOKENIZER)
        behind = engine_behind(settings, asked["engine"], asked.get("options", {}))
        return cls(behind, turns, Path(asked["output"]))

    def __init__(self, behind: InferenceEngine, turns: Sequence[Turn], output: Path) -> None:
        super().__init__(behind)
        self._turns = list(turns)
        self._output = output

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        turn = self._turns.pop(0)
        assert turn.prompt_tokens == request.tokens, "the workflow asks for the turns in order"
        logprobs, likeliest = zip(*await self._read_all(turn, request.session), strict=True)
        if len(logprobs) > 1 and min(logprobs) > CERTAIN > min(turn.logprobs):
            raise EngineError(
                "every token is certain: this engine tells the logprobs that its biases have changed; "
                "read with --engine local"
            )
        with self._output.open("ab") as file:
            file.write(orjson.dumps(_line(logprobs, likeliest)) + b"\n")
        yield GenerateChunk(
            turn.output_tokens,
            logprobs,
            (self.version,) * len(logprobs),
            finish_reason=FinishReason.LENGTH,
        )

    async def _read_all(self, turn: Turn, session: str) -> list[tuple[float, Mapping[int, float]]]:
        slots = asyncio.Semaphore(AT_ONCE)
        places = range(len(turn.output_tokens))
        try:
            async with asyncio.TaskGroup() as tasks:
                reads = [tasks.create_task(self._read(turn, n, session, slots)) for n in places]
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None  # one fault of the engine is that of all requests
        return [read.result() for read in reads]

    async def _read(
        self, turn: Turn, place: int, session: str, slots: asyncio.Semaphore
    ) -> tuple[float, Mapping[int, float]]:
        """The logprob of a token of `turn`, and the likeliest tokens at its place."""
        token = turn.output_tokens[place]
        # As the turn was sampled: a greedy turn has the logprobs of T = 1.
        sampling = Sampling(turn.temperature or 1.0, top_k=1, logit_bias={token: NO_CHOICE})
        request = GenerateRequest(
            turn.prompt_tokens + turn.output_tokens[:place],
            1,
            sampling,
            ignore_eos=True,
            seed=0,
            num_top_logprobs=NUM_LIKELIEST,
            session=session,
        )
        async with slots:
            read = await self.behind.generate(request)
        if read.tokens != (token,):
            raise EngineError(
                f"token {token} was asked for, and {read.tokens} came: this engine has no logit_bias; read "
                "with --engine local"
            )
        return read.logprobs[0], read.top_logprobs[0] if read.top_logprobs else {}


def turns_with_tokens(episode: Episode) -> list[Turn]:
    """The turns that an engine of a run sampled. Those of another provider are text."""
    return [turn for turn in episode.turns if turn.output_tokens]


def _line(logprobs: Sequence[float], likeliest: Sequence[Mapping[int, float]]) -> dict[str, Any]:
    return {
        "logprobs": [round(value, 6) for value in logprobs],
        "likeliest": [
            [
                [token, round(value, 6)]
                for token, value in sorted(at.items(), key=lambda one: -one[1])
            ]
            for at in likeliest
        ],
    }
