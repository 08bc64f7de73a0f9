"""What the engine says about its model, read from the model's directory."""

import json
from pathlib import Path
from typing import Any

from areal_sdk.engine import EngineInfo
from areal_sdk.errors import ConfigError


def read_model_info(directory: Path, *, max_context: int | None) -> EngineInfo:
    config = _read(directory / "config.json")
    if config is None:
        raise ConfigError(f"{directory} is not a model directory: it has no config.json")
    text = config.get("text_config") or config
    own_context = int(text["max_position_embeddings"])
    return EngineInfo(
        model=str(directory),
        max_context=min(max_context or own_context, own_context),
        vocab_size=int(text["vocab_size"]),
        stop_tokens=_stop_tokens(directory, text),
        constrains_json=True,
    )


def _stop_tokens(directory: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Those that servers stop at: of the config, the generation config and the tokenizer."""
    found: set[int] = set()
    for source in (config, _read(directory / "generation_config.json") or {}):
        eos = source.get("eos_token_id")
        found.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
    token = (_read(directory / "tokenizer_config.json") or {}).get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    added = (_read(directory / "tokenizer.json") or {}).get("added_tokens") or []
    found.update(int(entry["id"]) for entry in added if entry["content"] == content)
    return tuple(sorted(found))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return content if isinstance(content, dict) else None
