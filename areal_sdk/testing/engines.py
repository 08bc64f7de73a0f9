"""`check_engine`: does an inference engine keep the contract that training depends on?"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from areal_sdk.engine import (
    GenerateChunk,
    GenerateRequest,
    GenerateResult,
    InferenceEngine,
    Sampling,
)
from areal_sdk.errors import ContextOverflowError
from areal_sdk.testing.conformance import ConformanceError, in_time, require
from areal_sdk.types import FinishReason, WeightUpdate

HELD_S = 0.5
"""Seconds within which an engine that wrongly samples while it is paused will have ended a request."""


async def check_engine(
    engine: InferenceEngine,
    *,
    prompt: Sequence[int] = (10, 11, 12, 13),
    is_model: bool = True,
    timeout_s: float = 60.0,
) -> None:
    """Start `engine`, try every promise of `InferenceEngine`, close it; ConformanceError says which is broken.

    `is_model=False` is for engines that do not sample, such as a script: their logprobs are not checked. Weights are
    not changed, only relabelled: versions 1 and 2 are published.
    """
    check = _Checks(engine, tuple(prompt), timeout_s)
    await in_time(engine.start(), timeout_s=timeout_s, what="start()")
    try:
        check.info()
        await check.one_completion()
        await check.stop_tokens()
        await check.overflow()
        await check.many_at_once()
        await check.closing_early()
        if is_model:
            await check.logprobs()
        await check.new_weights_in_flight()
        await check.pausing()
    finally:
        await in_time(engine.aclose(), timeout_s=timeout_s, what="aclose()")
    await in_time(engine.aclose(), timeout_s=timeout_s, what="aclose() a second time")


class _Checks:
    def __init__(self, engine: InferenceEngine, prompt: tuple[int, ...], timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._request = GenerateRequest(tokens=prompt, max_new_tokens=6, ignore_eos=True, seed=1)

    def info(self) -> None:
        info = self._engine.info
        require(info.max_context > 0, f"info.max_context is {info.max_context}")
        outside = [t for t in info.stop_tokens if not 0 <= t < info.vocab_size]
        require(not outside, f"info.stop_tokens {outside} are outside of the vocabulary")

    async def one_completion(self) -> None:
        result = await self._generate(self._request)
        self._well_formed(result)
        require(
            result.finish_reason is FinishReason.LENGTH and len(result.tokens) == 6,
            f"ignore_eos with max_new_tokens = 6 gave {len(result.tokens)} tokens, finish reason "
            f"{result.finish_reason.value!r}",
        )
        chunks = [c async for c in self._stream(self._request)]
        reasons = [c.finish_reason for c in chunks]
        require(
            reasons[-1] is not None and all(r is None for r in reasons[:-1]),
            f"the last chunk, and no other, carries a finish reason; got {reasons}",
        )
        greedy = replace(self._request, sampling=Sampling(temperature=0.0))
        first, second = await self._generate(greedy), await self._generate(greedy)
        require(
            first.tokens == second.tokens,
            f"temperature 0 gave {first.tokens}, then {second.tokens}",
        )

    async def stop_tokens(self) -> None:
        greedy = replace(self._request, sampling=Sampling(temperature=0.0))
        tokens = (await self._generate(greedy)).tokens
        stop = tokens[2]
        cut = await self._generate(replace(greedy, stop_tokens=(stop,)))
        wanted = tokens[: tokens.index(stop) + 1]
        require(
            cut.tokens == wanted and cut.finish_reason is FinishReason.STOP,
            f"stop_tokens = ({stop},) should give {wanted} and 'stop', the stop token included; got "
            f"{cut.tokens} and {cut.finish_reason.value!r}",
        )

    async def overflow(self) -> None:
        too_long = (self._request.tokens[0],) * self._engine.info.max_context
        try:
            await self._generate(replace(self._request, tokens=too_long))
        except ContextOverflowError:
            return
        raise ConformanceError(
            "a prompt as long as the context must raise ContextOverflowError, not be cut"
        )

    async def many_at_once(self) -> None:
        requests = [replace(self._request, seed=seed, session=f"s{seed}") for seed in range(8)]
        for result in await asyncio.gather(*(self._generate(request) for request in requests)):
            self._well_formed(result)

    async def closing_early(self) -> None:
        """Abandon more streams than an engine is likely to have slots."""
        endless = replace(self._request, max_new_tokens=10_000)
        for _ in range(64):
            stream = self._engine.stream(endless)
            await self._next(stream)
            close = getattr(stream, "aclose", None)
            require(
                close is not None, "stream() must return an async generator, which has aclose()"
            )
            assert close is not None
            await in_time(close(), timeout_s=self._timeout_s, what="closing a stream early")
        self._well_formed(await self._generate(self._request))

    async def logprobs(self) -> None:
        """Check that a logprob is log softmax(logits / T) over the full vocabulary, whatever `top_k` is.

        With `top_k` = 2, the difference of the logprobs of the two candidates must scale with 1 / T.
        """
        at: dict[float, dict[int, float]] = {}
        for temperature in (0.5, 1.0, 2.0):
            one = replace(
                self._request, max_new_tokens=1, sampling=Sampling(temperature=temperature, top_k=2)
            )
            results = [await self._generate(replace(one, seed=seed)) for seed in range(32)]
            at[temperature] = {r.tokens[0]: r.logprobs[0] for r in results}
        greedy = await self._generate(
            replace(self._request, max_new_tokens=1, sampling=Sampling(temperature=0.0))
        )
        top, best = greedy.tokens[0], greedy.logprobs[0]
        if top in at[1.0]:
            require(
                math.isclose(at[1.0][top], best, abs_tol=0.02),
                f"token {top} has logprob {at[1.0][top]:.4f} under top_k = 2 and {best:.4f} under "
                "temperature 0: logprobs are over the full vocabulary, those of greedy at T = 1",
            )
        for temperature in (0.5, 2.0):
            shared = sorted(set(at[temperature]) & set(at[1.0]))
            if len(shared) < 2:
                continue
            a, b = shared[:2]
            gap = (at[temperature][a] - at[temperature][b]) * temperature
            wanted = at[1.0][a] - at[1.0][b]
            require(
                math.isclose(gap, wanted, abs_tol=0.02 * max(1.0, temperature)),
                f"logprobs sampled at temperature {temperature} are not log softmax(logits / T): "
                f"the gap of two tokens is {gap / temperature:.4f}, expected {wanted / temperature:.4f}",
            )

    async def new_weights_in_flight(self) -> None:
        long = replace(self._request, max_new_tokens=self._room())
        stream = self._engine.stream(long)
        first = await self._next(stream)
        version = self._engine.version + 1
        await in_time(
            self._engine.update_weights(WeightUpdate(version=version, path=None)),
            timeout_s=self._timeout_s,
            what="update_weights() with a request in flight (it must not wait for it)",
        )
        require(
            self._engine.version == version,
            f"version is {self._engine.version} after update_weights({version})",
        )
        versions = list(first.versions)
        async for chunk in stream:
            versions += chunk.versions
        require(versions == sorted(versions), f"the versions of one output go back: {versions}")
        require(
            versions[-1] == version,
            f"a request in flight ended under version {versions[-1]}, not the new {version}: it must "
            "go on under the new weights",
        )
        after = await self._generate(self._request)
        require(
            set(after.versions) == {version},
            f"tokens sampled after the update are labelled {sorted(set(after.versions))}",
        )

    async def pausing(self) -> None:
        await in_time(self._engine.pause(), timeout_s=self._timeout_s, what="pause()")
        held = asyncio.create_task(self._generate(self._request))
        await asyncio.wait({held}, timeout=HELD_S)
        require(
            not held.done(),
            "a request ended while the engine was paused: pause() must hold all generation "
            "until resume()",
        )
        version = self._engine.version + 1
        await in_time(
            self._engine.update_weights(WeightUpdate(version=version, path=None)),
            timeout_s=self._timeout_s,
            what="update_weights() while paused",
        )
        await in_time(self._engine.resume(), timeout_s=self._timeout_s, what="resume()")
        result = await in_time(held, timeout_s=self._timeout_s, what="a request after resume()")
        self._well_formed(result)

    def _room(self) -> int:
        return min(400, self._engine.info.max_context - len(self._request.tokens) - 1)

    def _well_formed(self, result: GenerateResult) -> None:
        info = self._engine.info
        lengths = (len(result.tokens), len(result.logprobs), len(result.versions))
        require(
            len(set(lengths)) == 1, f"tokens, logprobs and versions differ in length: {lengths}"
        )
        bad = [t for t in result.tokens if not 0 <= t < info.vocab_size]
        require(not bad, f"tokens {bad} are outside of the vocabulary of {info.vocab_size}")
        wrong = [lp for lp in result.logprobs if not (math.isfinite(lp) and lp <= 1e-4)]
        require(not wrong, f"{wrong} are not logprobs")
        known = self._engine.version
        late = [v for v in result.versions if not 0 <= v <= known]
        require(not late, f"versions {late} while the engine is at {known}")

    async def _generate(self, request: GenerateRequest) -> GenerateResult:
        return await in_time(
            self._engine.generate(request), timeout_s=self._timeout_s, what="a completion"
        )

    async def _stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        stream = self._engine.stream(request)
        while True:
            try:
                yield await self._next(stream)
            except StopAsyncIteration:
                return

    async def _next(self, stream: AsyncIterator[GenerateChunk]) -> GenerateChunk:
        """The next chunk that is not empty."""
        while True:
            chunk = await in_time(
                anext(stream), timeout_s=self._timeout_s, what="the next chunk of a stream"
            )
            if chunk.tokens or chunk.finish_reason is not None:
                return chunk
