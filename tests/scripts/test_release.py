"""A release is refused where tag, version and changelog do not agree."""

import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import areal_sdk

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from release import Release, ReleaseError, needed, read_tag  # noqa: E402


def tree(root: Path, *, version: str = "1.2.0", newest: str = "1.2.0 - 2026-11-22") -> Path:
    core = root / "areal_sdk"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (root / "pyproject.toml").write_text('[project]\nname = "areal-sdk"\ndynamic = ["version"]\n')
    plugin = root / "plugins" / "areal-sdk-chess"
    plugin.mkdir(parents=True)
    (plugin / "pyproject.toml").write_text(
        f'[project]\nname = "areal-sdk-chess"\nversion = "{version}"\n'
    )
    for directory in (root, plugin):
        (directory / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n## {newest}\n")
    return root


def test_a_tag_names_the_core_or_a_plugin(tmp_path: Path) -> None:
    root = tree(tmp_path)
    assert read_tag("v1.2.0", root) == Release("areal-sdk", "1.2.0", root)
    plugin = root / "plugins" / "areal-sdk-chess"
    assert read_tag("areal-sdk-chess-v1.2.0", root) == Release("areal-sdk-chess", "1.2.0", plugin)


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        ("1.2.0", "want v1.2.3"),
        ("v1.2", "want v1.2.3"),
        ("areal-sdk-go-v1.2.0", "plugins: areal-sdk-chess"),
        ("v1.3.0", "the tag says 1.3.0, the tree 1.2.0"),
        ("areal-sdk-chess-v1.3.0", "the tag says 1.3.0, the tree 1.2.0"),
    ],
)
def test_a_tag_that_fits_nothing_is_refused(tmp_path: Path, tag: str, why: str) -> None:
    with pytest.raises(ReleaseError, match=why):
        read_tag(tag, tree(tmp_path))


def test_a_version_without_a_section_in_the_changelog_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="newest section is 1\\.1\\.0, not 1\\.2\\.0"):
        read_tag("v1.2.0", tree(tmp_path, newest="1.1.0"))


def test_a_section_without_a_date_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="section 1\\.2\\.0 has no date"):
        read_tag("v1.2.0", tree(tmp_path, newest="1.2.0 (not released yet)"))


def test_a_plugin_is_tried_with_what_it_needs_of_this_tree() -> None:
    plugins = ROOT / "plugins"
    assert needed(ROOT) == []
    assert needed(plugins / "areal-sdk-code") == [ROOT, plugins / "areal-sdk-sandbox"]


TEMPLATE = ROOT / "areal_sdk" / "cli" / "templates" / "distribution" / "pyproject.toml"


@pytest.mark.parametrize(
    "file",
    [TEMPLATE, *sorted(ROOT.glob("plugins/*/pyproject.toml"))],
    ids=lambda one: one.parent.name,
)
def test_a_package_names_the_versions_of_the_core_that_it_works_with(file: Path) -> None:
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    needs = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    assert needs["areal-sdk"].contains(areal_sdk.__version__)
    assert not needs["areal-sdk"].contains("1.0")


def test_every_distribution_of_this_tree_has_what_a_release_reads() -> None:
    directories = [ROOT, *(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
    assert all((directory / "CHANGELOG.md").is_file() for directory in directories)
