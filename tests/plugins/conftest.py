"""Installs throw-away distributions that the real discovery finds."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., str]
_numbers = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install("dist-name", source)` puts a distribution with one plugin module on `sys.path`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def install(distribution: str, source: str, *, version: str = "1.0", requires: str = "") -> str:
        module = f"plugin_{next(_numbers)}"
        (site / f"{module}.py").write_text(source)
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{requires}"
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text(f"[areal_sdk]\nmain = {module}\n")
        return module

    yield install
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]
