"""The command line is instant, light, and reports errors in one line."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from areal_sdk.cli.main import COMMANDS, cli
from tests.plugins.conftest import Install, install

__all__ = ["install"]  # the fixture, shared with the plugins' tests

HEAVY = {"torch", "transformers", "pydantic", "aiohttp", "openai", "numpy", "datasets"}


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A command that ends ignores Ctrl-C from then on; here the process goes on, and has children."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    code += (
        "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    return set(done.stderr.split())


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "areal_sdk", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=env,
    )


def test_importing_the_sdk_loads_nothing_heavy() -> None:
    assert not modules_after("import areal_sdk") & HEAVY


def test_help_loads_nothing_heavy() -> None:
    loaded = modules_after(
        "from areal_sdk.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit: pass"
    )
    assert "click" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_its_help_needs_no_torch(name: str) -> None:
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert command.name == name
    assert command.help


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run("trian")
    assert done.returncode == 2
    assert "No such command 'trian'" in done.stderr


def test_a_configuration_error_is_one_line_and_exit_code_2() -> None:
    done = run("inspect", "no/such/run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no/such/run is not a run directory")
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in run("--debug", "inspect", "no/such/run").stderr


def test_plugins_as_json_lists_the_built_in_one() -> None:
    done = run("plugins", "--json")
    assert done.returncode == 0, done.stderr
    (builtin,) = (p for p in json.loads(done.stdout)["plugins"] if p["name"] == "builtin")
    assert builtin["distribution"] == "areal-sdk"
    assert "numeric_match" in builtin["brings"]["reward"]


def test_plugins_imports_nothing_heavy_for_what_is_registered_by_reference() -> None:
    loaded = modules_after(
        "from areal_sdk.cli import main\ntry:\n    main(['plugins'])\nexcept SystemExit: pass"
    )
    assert not loaded & {"torch", "transformers", "datasets"}


def test_a_plugins_command_is_listed_and_runs(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    from areal_sdk.cli import main

    install(
        "areal-sdk-cmd",
        "import areal_sdk, click\n@areal_sdk.hookimpl\ndef register_commands(group):\n"
        "    @group.command()\n    def hello():\n        'Say hello.'\n        click.echo('hi')\n",
    )
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "Say hello." in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["hello"])
    assert capsys.readouterr().out == "hi\n"


def test_ctrl_c_while_pydantic_writes_settings_is_no_internal_error(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    from areal_sdk.cli import main

    install(
        "areal-sdk-cmd",
        "import areal_sdk, pydantic\nclass Settings(pydantic.BaseModel):\n    path: str = ''\n"
        "    @pydantic.field_serializer('path')\n    def written(self, path):\n"
        "        raise KeyboardInterrupt\n"
        "@areal_sdk.hookimpl\ndef register_commands(group):\n"
        "    @group.command()\n    def write():\n        Settings().model_dump()\n",
    )
    with pytest.raises(SystemExit, match="1"):
        main(["write"])
    assert capsys.readouterr().err == "interrupted\n"


def test_a_run_that_is_deleted_while_it_ends_is_no_internal_error(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    from areal_sdk.cli import main

    install(
        "areal-sdk-cmd",
        "import areal_sdk\n@areal_sdk.hookimpl\ndef register_commands(group):\n"
        "    @group.command()\n    def end():\n        open('runs/gone/config.toml')\n",
    )
    with pytest.raises(SystemExit, match="1"):
        main(["end"])
    said = "error: no directory runs/gone: keep it until the command ends, or make it\n"
    assert capsys.readouterr().err == said


def test_a_broken_plugin_is_reported_and_the_exit_code_says_so(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    from areal_sdk.cli import main

    install("areal-sdk-broken", "import no_such_package")
    with pytest.raises(SystemExit, match="1"):
        main(["plugins"])
    assert "plugin areal-sdk-broken: ModuleNotFoundError" in capsys.readouterr().out
