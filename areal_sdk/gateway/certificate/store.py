"""Certificates that were issued on this machine, found again by what they are about."""

from pathlib import Path

import orjson

from areal_sdk.gateway.certificate.findings import Certificate
from areal_sdk.gateway.certificate.model import content_key
from areal_sdk.models.cache import Cache
from areal_sdk.telemetry.files import to_json, write_atomically

_BUILT_IN = frozenset({"6f4b14d2559313875e46fdffd96e74d7", "10bfeecc91508ec8cdda815087bd1637"})
"""The models that come with this package, `tiny` and `smollm2`; our tests certify them."""


def keep(certificate: Certificate, *, cache_dir: Path | None = None) -> Path:
    """Write it to the cache, also one that says no."""
    path = _path(certificate.key, cache_dir)
    summary = {"certified": certificate.is_certified, "findings": certificate.findings}
    write_atomically(path, to_json(summary, indent=True) + b"\n")
    return path


def is_certified(
    model_dir: Path, *, tool_format: str | None = None, cache_dir: Path | None = None
) -> bool | None:
    """What this model's certificate says, with this `gateway.tool_format`; None without one."""
    key = content_key(model_dir, tool_format=tool_format)
    if key in _BUILT_IN:
        return True
    path = _path(key, cache_dir)
    if not path.is_file():
        return None
    try:
        return bool(orjson.loads(path.read_bytes())["certified"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def warning(
    model_dir: Path, *, tool_format: str | None = None, cache_dir: Path | None = None
) -> str | None:
    """One line for whoever is about to train this model; None if it is certified."""
    certified = is_certified(model_dir, tool_format=tool_format, cache_dir=cache_dir)
    if certified:
        return None
    why = "has no token-exactness certificate" if certified is None else "is not token-exact"
    option = "" if tool_format is None else f" --tool-format {tool_format}"
    return f"this model {why}: see areal-sdk doctor model {model_dir}{option}"


def _path(key: str, cache_dir: Path | None) -> Path:
    return Cache(cache_dir).root / "certificates" / f"{key}.json"
