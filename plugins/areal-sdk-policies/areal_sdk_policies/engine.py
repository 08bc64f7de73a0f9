"""One engine for each policy. A request goes to the engine of the policy that it names, and to no other."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_sdk.engine import (
    ConfiguredEngine,
    EngineDeath,
    EngineInfo,
    EngineSettings,
    GenerateChunk,
    GenerateRequest,
    InferenceEngine,
)
from areal_sdk.errors import ConfigError, EngineError
from areal_sdk.types import WeightUpdate
from areal_sdk_policies.calls import first_result, together


class PolicyEngine(ConfiguredEngine):
    """The engines of a run's policies. Only those of trained policies get new weights."""

    is_repeatable = True  # if every engine is, which `from_settings` checks

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "PolicyEngine":
        weights = {name: policy.frozen for name, policy in settings.policies.items()}
        made = {name: _engine_of(name, frozen, settings) for name, frozen in weights.items()}
        frozen = [name for name, where in weights.items() if where is not None]
        return cls(made, frozen=frozen, log_dir=settings.log_dir)

    def __init__(
        self,
        engines: Mapping[str, InferenceEngine],
        *,
        frozen: Iterable[str] = (),
        log_dir: Path | None = None,
    ) -> None:
        """`engines` by the names of their policies, not started."""
        self._engines = dict(engines)
        self._trained = {name: e for name, e in self._engines.items() if name not in {*frozen}}
        self._log_dir = log_dir
        self._out: set[str] = set()
        """Policies whose engine can sample nothing now."""

    async def start(self) -> None:
        if self._log_dir is not None:
            for name in self._engines:
                (self._log_dir / name).mkdir(0o700, parents=True, exist_ok=True)
        await together(engine.start() for engine in self._engines.values())
        infos = {name: engine.info for name, engine in self._engines.items()}
        first = infos[next(iter(self._trained))]
        for name, info in infos.items():
            if info.vocab_size != first.vocab_size or info.stop_tokens != first.stop_tokens:
                raise EngineError(
                    f"policy {name!r} has {info.vocab_size} tokens and ends a turn with {info.stop_tokens}, another "
                    f"{first.vocab_size} and {first.stop_tokens}: policies of a run share one tokenizer"
                )

    @property
    def info(self) -> EngineInfo:
        infos = [engine.info for engine in self._engines.values()]
        return replace(
            next(iter(self._trained.values())).info,
            max_context=min(info.max_context for info in infos),
            constrains_json=all(info.constrains_json for info in infos),
            shares_device=any(info.shares_device for info in infos),
            restart_s=max(info.restart_s for info in infos),
            policies={name: name in self._trained for name in self._engines},
        )

    @property
    def version(self) -> int:
        """The version that every trained policy has reached. Tokens carry that of the policy that sampled them."""
        return min(engine.version for engine in self._trained.values())

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        engine = self._engines.get(request.policy)
        if engine is None:
            raise EngineError(
                f"unknown policy {request.policy!r}; known: {', '.join(self._engines)}"
            )
        chunks = engine.stream(request)
        try:
            async for chunk in chunks:
                yield chunk
        finally:  # a stream that is closed early frees its slot
            if (close := getattr(chunks, "aclose", None)) is not None:
                await close()

    async def update_weights(self, update: WeightUpdate) -> None:
        """Each trained policy gets its own weights; a policy without new ones gets the new number alone."""
        if update.path is not None or not update.by_policy.keys() <= self._trained.keys():
            raise EngineError(
                f"the weights of version {update.version} are for {[*update.by_policy] or 'one policy'}, and "
                f"{[*self._trained]} are trained"
            )
        label = WeightUpdate(update.version, None)
        await together(
            engine.update_weights(update.by_policy.get(name, label))
            for name, engine in self._trained.items()
        )

    @property
    def is_alive(self) -> bool:
        return all(engine.is_alive for engine in self._engines.values())

    async def died(self) -> EngineDeath:
        return await first_result(engine.died() for engine in self._engines.values())

    async def restart(self) -> None:
        await together(e.restart() for e in self._engines.values() if not e.is_alive)

    def observe_outages(self, tell: Callable[[bool], None]) -> None:
        def told(name: str, is_out: bool) -> None:
            (self._out.add if is_out else self._out.discard)(name)
            tell(bool(self._out))

        for name, engine in self._engines.items():
            engine.observe_outages(lambda is_out, name=name: told(name, is_out))  # type: ignore[misc]

    async def pause(self) -> None:
        await together(engine.pause() for engine in self._engines.values())

    async def resume(self) -> None:
        await together(engine.resume() for engine in self._engines.values())

    async def release_memory(self) -> None:
        await together(engine.release_memory() for engine in self._engines.values())

    async def resume_memory(self) -> None:
        await together(engine.resume_memory() for engine in self._engines.values())

    async def aclose(self) -> None:
        await asyncio.gather(*(engine.aclose() for engine in self._engines.values()))


def _engine_of(name: str, frozen: str | None, settings: EngineSettings) -> InferenceEngine:
    """The engine of a policy, not started: with the weights of the run's model, or with frozen ones."""
    assert settings.find is not None, "a run says how engines are found"
    section, model_dir = settings.section, settings.model_dir
    if frozen is not None and "://" in frozen:
        section = section.model_copy(update={"name": frozen})
    elif frozen is not None:
        model_dir = Path(frozen)
        _check_same_tokens(name, model_dir, settings.model_dir)
    kind = settings.find(section.kind)
    if settings.deterministic and not kind.is_repeatable:
        raise ConfigError(
            f"run.deterministic needs engines that sample the same tokens twice: that of [policy.{name}] does not"
        )
    kind.check_installed()
    kind.check_model(model_dir)
    log_dir = settings.log_dir / name
    if not issubclass(kind, ConfiguredEngine):
        make: Callable[..., InferenceEngine] = kind
        return make(model_dir=model_dir, log_dir=log_dir, **settings.options)
    own = replace(
        settings, section=section, model_dir=model_dir, log_dir=log_dir, launcher=None, policies={}
    )
    return kind.from_settings(own)


def _check_same_tokens(name: str, frozen: Path, model_dir: Path) -> None:
    if _tokens(frozen) != _tokens(model_dir):
        raise ConfigError(
            f"[policy.{name}] frozen = {str(frozen)!r} has another tokenizer than the model {model_dir}: policies of a "
            "run share one, since a request is rendered before its policy is asked"
        )


def _tokens(model_dir: Path) -> Any:
    """The vocabulary of a model; None if it has no such file."""
    try:
        described = json.loads((model_dir / "tokenizer.json").read_text(encoding="utf-8"))
    except OSError:
        return None
    added = [(token["id"], token["content"]) for token in described.get("added_tokens") or ()]
    return described["model"].get("vocab"), added
