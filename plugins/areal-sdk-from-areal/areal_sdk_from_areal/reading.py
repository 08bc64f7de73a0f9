"""Reads AReaL's YAML: references like `${actor.path}` are resolved, keys are written with dots."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from areal_sdk.errors import ConfigError
from areal_sdk_from_areal.outcome import JSON

REFERENCE = re.compile(r"\$\{([^}:$]+)\}")
FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+")
"""`1e-8`, which YAML 1.1 takes for a text and AReaL for a number."""


def read_keys(path: Path) -> dict[str, JSON]:
    """The keys of a file, and their values; lists are values."""
    tree = _load(path)
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path} holds no keys: give a configuration of AReaL (YAML)")
    return dict(_leaves(_resolved(tree, tree, path, ())))


def _load(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"{path}: not valid YAML: {exc}") from None


def _resolved(node: Any, root: Mapping[str, Any], path: Path, within: tuple[str, ...]) -> Any:
    """`node` with references replaced by what they name; `within`: references that led here."""
    if isinstance(node, Mapping):
        return {str(key): _resolved(value, root, path, within) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolved(value, root, path, within) for value in node]
    if not isinstance(node, str):
        return node
    if FLOAT.fullmatch(node):
        return float(node)

    def named(key: str) -> Any:
        if key in within:
            raise ConfigError(f"{path}: ${{{key}}} refers to itself")
        return _resolved(_at(root, key, path), root, path, (*within, key))

    if whole := REFERENCE.fullmatch(node):
        return named(whole[1])
    return REFERENCE.sub(lambda found: str(named(found[1])), node)


def _at(root: Mapping[str, Any], key: str, path: Path) -> Any:
    node: Any = root
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise ConfigError(
                f"{path}: ${{{key}}} names no key of the file: write the value itself"
            )
        node = node[part]
    return node


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, JSON]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, node
