"""Certificates that were issued on this machine, found again by what they are about."""

from pathlib import Path

import orjson

from areal_sdk.gateway.certificate.findings import Certificate
from areal_sdk.gateway.certificate.model import content_key
from areal_sdk.models.cache import Cache
from areal_sdk.telemetry.files import to_json, write_atomically


def keep(certificate: Certificate, *, cache_dir: Path | None = None) -> Path:
    """Write it to the cache, also one that says no."""
    path = _path(certificate.key, cache_dir)
    summary = {"certified": certificate.is_certified, "findings": certificate.findings}
    write_atomically(path, to_json(summary, indent=True) + b"\n")
    return path


def is_certified(model_dir: Path, *, cache_dir: Path | None = None) -> bool | None:
    """What this model's certificate says; None without one."""
    path = _path(content_key(model_dir), cache_dir)
    if not path.is_file():
        return None
    try:
        return bool(orjson.loads(path.read_bytes())["certified"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _path(key: str, cache_dir: Path | None) -> Path:
    return Cache(cache_dir).root / "certificates" / f"{key}.json"
