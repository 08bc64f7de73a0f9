"""`areal-sdk init`: writes an agent, an environment or a plugin to start from, or translates AReaL's settings.

A distribution is put together from three folders of templates: `distribution`, `world` (an environment with
its tasks), and `environment` or `plugin`, with the hooks and the README.
"""

import keyword
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

TEMPLATES = Path(__file__).parent / "templates"
TAKEN = ("areal_sdk", "openai", "torch", "transformers", "pytest")
"""Names that a new module must not have: it would hide the package of that name, and break its users."""


@click.group(name="init", invoke_without_command=True)
@click.option(
    "--from-areal",
    "areal_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Translate AReaL's configuration (YAML) into settings (TOML); needs areal-sdk[from-areal].",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write the settings; default: here, under the name of the YAML file.",
)
@click.pass_context
def init(ctx: click.Context, areal_file: Path | None, output: Path | None) -> None:
    """Start an agent, an environment or a plugin, whose own tests pass; or settings from AReaL's.

    \b
    areal-sdk init agent word_count
    areal-sdk init environment areal-sdk-maze
    areal-sdk init --from-areal gsm8k_grpo.yaml
    """
    if ctx.invoked_subcommand is not None:
        if areal_file or output:
            raise click.UsageError("--from-areal goes without a command", ctx)
    elif areal_file is not None:
        _translate(areal_file, output or Path(areal_file.with_suffix(".toml").name))
    else:
        click.echo(ctx.get_help())
        if output:
            raise click.UsageError("--output names the file that --from-areal writes", ctx)


def _translate(source: Path, target: Path) -> None:
    """Write the settings; print the outcome of each key."""
    from areal_sdk.errors import ConfigError
    from areal_sdk.errors.packages import how_to_install

    if cure := how_to_install("option", "init --from-areal"):
        raise ConfigError(cure)
    from areal_sdk_from_areal.configuration import read_keys, report_lines, translate

    translation = translate(read_keys(source))
    if target.exists():
        raise ConfigError(f"{target} exists: choose another name (--output), or move it away")
    target.write_text(
        f"# From {source.name}, by areal-sdk init\n{translation.toml()}", encoding="utf-8"
    )
    for line in report_lines(translation):
        click.echo(line)
    _say([target], f"areal-sdk train AGENT --config {target} --dry-run")


@init.command()
@click.argument("name")
def agent(name: str) -> None:
    """Write NAME.py, an agent with a tool and tasks, and test_NAME.py."""
    module = _identifier(name.removesuffix(".py"))
    paths = _write(["agent"], Path(), _replacements("my_agent", "MyAgent", module))
    _say(paths, "pip install pytest", f"pytest test_{module}.py", f"areal-sdk train {module}.py")


@init.command()
@click.argument("name")
def environment(name: str) -> None:
    """Make the directory NAME: a distribution with an environment, its tasks and tests."""
    _distribution(name, "environment")


@init.command()
@click.argument("name")
def plugin(name: str) -> None:
    """Make the directory NAME: a distribution with a reward, an environment, its tasks and tests."""
    _distribution(name, "plugin")


def _distribution(name: str, kind: str) -> None:
    module = _identifier(name)
    replacements = {
        "my-plugin": name,
        "dot-github": ".github",
        "THIS_YEAR": time.strftime("%Y"),
        **_replacements("my_plugin", "MyPlugin", module),
    }
    paths = _write(["distribution", "world", kind], Path(name), replacements)
    _say(
        paths,
        f'pip install -e "{name}[test]"',
        f"pytest {name}",
        f"areal-sdk plugins check {name}",
        f"areal-sdk train --env {module} --tasks {module}",
    )


def _write(templates: Sequence[str], target: Path, replacements: Mapping[str, str]) -> list[Path]:
    """Copy `templates` with names replaced. ConfigError, and no file is written, if one of the files exists."""
    from areal_sdk.errors import ConfigError

    contents: dict[Path, str] = {}
    for root in (TEMPLATES / template for template in templates):
        for source in sorted(root.rglob("*")):
            if source.is_dir() or "__pycache__" in source.parts:
                continue
            path = target / _replace(str(source.relative_to(root)), replacements)
            contents[path] = _replace(source.read_text(encoding="utf-8"), replacements)
    if taken := [str(path) for path in contents if path.exists()]:
        raise ConfigError(f"{taken[0]} exists: choose another name, or move it away")
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
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
