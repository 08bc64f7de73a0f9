"""`areal-sdk init`: an agent or a plugin to start from, with tests that pass."""

import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click

TEMPLATES = Path(__file__).parent / "templates"
TAKEN = ("areal_sdk", "openai", "torch", "transformers", "pytest")
"""Modules that the user's own would hide, and everything with it."""


@click.group(name="init")
def init() -> None:
    """Start an agent or a plugin from a template. Its own tests pass."""


@init.command()
@click.argument("name")
def agent(name: str) -> None:
    """Write NAME.py, an agent with a tool and tasks, and test_NAME.py."""
    module = _identifier(name.removesuffix(".py"))
    paths = _write(TEMPLATES / "agent", Path(), _replacements("my_agent", "MyAgent", module))
    _say(paths, "pip install pytest", f"pytest test_{module}.py", f"areal-sdk train {module}.py")


@init.command()
@click.argument("name")
def plugin(name: str) -> None:
    """Make the directory NAME: a package with an entry point, a reward and tests."""
    module = _identifier(name)
    replacements = {"my-plugin": name, **_replacements("my_plugin", "MyPlugin", module)}
    paths = _write(TEMPLATES / "plugin", Path(name), replacements)
    _say(paths, f'pip install -e "{name}[test]"', "areal-sdk plugins", f"pytest {name}")


def _write(template: Path, target: Path, replacements: Mapping[str, str]) -> list[Path]:
    """Copy `template` with names replaced; nothing is written when anything is in the way."""
    from areal_sdk.errors import ConfigError

    contents: dict[Path, str] = {}
    for source in sorted(template.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        path = target / _replace(str(source.relative_to(template)), replacements)
        contents[path] = _replace(source.read_text(), replacements)
    if taken := [str(path) for path in contents if path.exists()]:
        raise ConfigError(f"{taken[0]} exists: choose another name, or move it away")
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(contents)


def _identifier(name: str) -> str:
    from areal_sdk.errors import ConfigError

    module = re.sub(r"[-.\s]+", "_", name).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise ConfigError(f"{name!r} makes no Python name: use letters, digits, '_' and '-'")
    if module in sys.stdlib_module_names or module in TAKEN:
        raise ConfigError(f"{name!r} would hide the module {module!r}: choose another name")
    return module


def _replacements(module: str, cls: str, name: str) -> dict[str, str]:
    return {module: name, cls: "".join(part.capitalize() for part in name.split("_"))}


def _replace(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def _say(paths: list[Path], *next_steps: str) -> None:
    for path in paths:
        click.echo(f"wrote {path}")
    click.echo("next:")
    for step in next_steps:
        click.echo(f"  {step}")
