"""Checks after a push: does the server hold the new weights, all of them, and compute with them?

The engine asks each server three questions after every push. *Label*: does the server name the version of the push?
*Checksum*: are its parameters, byte for byte, the published ones? The server is still paused for these two, so that it
samples no token from wrong weights. *Canary*: are the logprobs after a fixed prompt those of a plain forward over the
published weights, with no part of the prompt from an older cache?
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from areal_sdk.backends.remote.client import ServerFailedError
from areal_sdk.backends.remote.server_pool import Server
from areal_sdk.backends.remote.weights.sender import SenderCalls, WeightSender
from areal_sdk.errors import StaleWeightsError
from areal_sdk.types import WeightUpdate

NUM_CANARY_TOKENS = 24
NUM_CANDIDATES = 8

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
"""Mean error of the canary's logprobs that arithmetic alone explains. In bfloat16 it can be 0.03 (SmolLM2), so the
canary finds gross faults there, and the checksum small ones."""


def tolerance_of(dtype: str) -> float:
    """The tolerance of a dtype. `auto`, which is mostly bfloat16, has the wide one."""
    return TOLERANCES.get(dtype, TOLERANCES["bfloat16"])


def mean_error(scores: Mapping[int, float], expected: Mapping[int, float]) -> float:
    return sum(abs(scores[token] - value) for token, value in expected.items()) / len(expected)


class CanaryScorer(Protocol):
    """Log softmax of `candidates` after `tokens`, under `version`, computed by the maker of the version."""

    async def __call__(
        self, version: int, tokens: Sequence[int], candidates: Sequence[int]
    ) -> Sequence[float]: ...


@dataclass(slots=True)
class Canary:
    """A prompt whose next-token logprobs tell two versions apart."""

    tokens: tuple[int, ...]
    candidates: tuple[int, ...]

    @classmethod
    def for_vocabulary(cls, size: int) -> "Canary":
        generator = random.Random(20261121)
        pick = [generator.randrange(size) for _ in range(NUM_CANARY_TOKENS + NUM_CANDIDATES)]
        return cls(tuple(pick[:NUM_CANARY_TOKENS]), tuple(sorted(set(pick[NUM_CANARY_TOKENS:]))))


@dataclass(slots=True)
class Verifier:
    """Checks servers against one published version at a time."""

    sender: WeightSender
    canary: Canary
    scorer: CanaryScorer | None = None
    """The trainer's own scorer; default: the sender, with a plain forward of transformers."""
    tolerance: float | None = None
    _names: dict[str, list[str]] = field(default_factory=dict)
    """The parameters that each server reports, by address, learned from the server's first answer."""
    _expected_checksums: Mapping[str, str] = field(default_factory=dict)
    _published: str = ""
    """A hash of everything that was published, to tell whether versions differ at all."""
    _is_change: bool = False
    _expected_canary: dict[int, float] = field(default_factory=dict)
    _previous: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """The report of each server under the version before, by address."""

    async def prepare(self, update: WeightUpdate, servers: Sequence[Server]) -> None:
        """Compute what servers must answer, while they still generate."""
        for server in servers:
            if server.address not in self._names:
                if not server.client.capabilities.reports_checksums:
                    continue
                with suppress(ServerFailedError):  # it is gone: its own push will say so
                    self._previous[server.address] = await server.client.checksums()
                    self._names[server.address] = sorted(self._previous[server.address])
        await self.sender.open(update)
        names = sorted({name for listed in self._names.values() for name in listed})
        answer = await self.sender.call(SenderCalls.checksums, names)
        self._expected_checksums = answer.parameters
        self._is_change = self._published not in ("", answer.all)
        self._published = answer.all
        candidates = list(self.canary.candidates)
        if self.scorer is not None:
            scores = await self.scorer(update.version, self.canary.tokens, candidates)
        else:
            scores = await self.sender.call(SenderCalls.canary, self.canary.tokens, candidates)
        self._expected_canary = dict(zip(candidates, scores, strict=True))

    async def check_paused(self, server: Server, *, label: str) -> None:
        """Check label and checksum, which a server can answer while it does not generate."""
        client = server.client
        if client.capabilities.reports_checksums:
            served, held = await asyncio.gather(client.weight_label(), client.checksums())
        else:
            served, held = await client.weight_label(), None
        if served != label:
            raise StaleWeightsError(
                f"{server.address} serves weights {served!r} after the push of {label!r}: "
                "the push was skipped"
            )
        if held is None:
            return
        assert server.info is not None
        if server.info.hashes_bytes:
            wrong = [
                name
                for name, expected in self._expected_checksums.items()
                if held.get(name, expected) != expected
            ]
            if wrong or not self._expected_checksums:
                raise StaleWeightsError(
                    f"{server.address}: {len(wrong)} of {len(self._expected_checksums)} parameters "
                    f"are not the published ones after the push of {label!r} (half applied, or "
                    f"another dtype), first {wrong[:3]}"
                )
        elif self._is_change and held == self._previous.get(server.address):
            # hashes of the server's own making: only their change tells something
            raise StaleWeightsError(
                f"{server.address} holds the same bytes before and after the push of {label!r}"
            )
        self._previous[server.address] = held

    async def check_serving(self, server: Server, *, cache_key: str | None = None) -> None:
        """Check the canary, which tests weights, forward and cache together."""
        answer = await server.client.score(
            self.canary.tokens, self.canary.candidates, cache_key=cache_key
        )
        if answer.num_cached:
            raise StaleWeightsError(
                f"{server.address} answered the canary from {answer.num_cached} cached tokens "
                "right after a push: its prefix cache was not flushed"
            )
        assert server.info is not None
        tolerance = self.tolerance or tolerance_of(server.info.dtype)
        error = mean_error(answer.logprobs, self._expected_canary)
        if error > tolerance:
            raise StaleWeightsError(
                f"{server.address}: the canary's logprobs are off by {error:.3g} (tolerance "
                f"{tolerance:g}): it does not compute with the published weights"
            )
