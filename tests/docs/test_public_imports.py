"""Plugins need nothing of ours but `areal_sdk` and the contract modules beside it; pages neither."""

import importlib
import pkgutil
import re
import tomllib

import areal_sdk
from tests.docs.blocks import ROOT, blocks
from tests.toolbox.contracts import CONTRACTS

INSIDE = re.compile(
    rf"^\s*(?:from|import) (areal_sdk\.(?!(?:{'|'.join(map(re.escape, sorted(CONTRACTS)))})\b(?!\.))[\w.]+)",
    re.MULTILINE,
)

TEMPLATES = sorted((ROOT / "areal_sdk" / "cli" / "templates").rglob("*.py"))
PLUGINS = sorted((ROOT / "plugins").rglob("*.py"))
PAGES = [
    ROOT / "docs" / name
    for name in (
        *("agents.md", "environments.md", "tasks.md", "rewards.md", "evaluation.md"),
        *("plugins.md", "api.md", "hooks.md", "algorithms.md"),
    )
]


def modules(package: str, folder: str = "") -> list[pkgutil.ModuleInfo]:
    """The modules of a package; their names begin with `folder`, if it is given."""
    paths = importlib.import_module(package).__path__
    return [*pkgutil.iter_modules(paths, f"{folder}." if folder else "")]


def test_plugins_may_import_the_contracts_and_nothing_else() -> None:
    shared = {name.partition(".")[0] for name in CONTRACTS if "." in name}
    found = [module for module in modules(areal_sdk.__name__) if module.name not in shared]
    found += [module for folder in shared for module in modules(f"areal_sdk.{folder}", folder)]
    everything = {module.name for module in found}
    assert everything >= CONTRACTS
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in listed["contracts"] if one["name"].startswith("plugins import"))
    inside = everything - CONTRACTS - {"__main__"}
    folders = {module.name for module in found if module.ispkg}
    inside |= {f"{name}.*" for name in CONTRACTS & folders}
    assert set(contract["forbidden_modules"]) == {f"areal_sdk.{name}" for name in inside}
    assert {"areal_sdk", *contract["source_modules"]} == set(listed["root_packages"])


def test_the_core_may_import_no_package_but_where_a_setting_asks_for_it() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (one for one in listed["contracts"] if one["name"].startswith("the core runs"))
    assert {"areal_sdk", *contract["forbidden_modules"]} == set(listed["root_packages"])


def test_the_page_of_public_names_lists_the_contracts() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    table = text.partition("## What is stable")[2].partition("The promise:")[0]
    listed = set(re.findall(r"`(?:areal_sdk\.)?([\w.]+)`", table)) - {"areal_sdk"}
    assert listed == CONTRACTS


def test_what_plugin_authors_read_imports_public_names_only() -> None:
    assert TEMPLATES
    assert PLUGINS
    inside = {
        file.name: INSIDE.findall(file.read_text(encoding="utf-8"))
        for file in (*TEMPLATES, *PLUGINS)
    }
    inside |= {b.where: INSIDE.findall(b.code) for page in PAGES for b in blocks(page, "python")}
    assert {where: found for where, found in inside.items() if found} == {}
