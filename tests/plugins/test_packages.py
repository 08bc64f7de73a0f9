"""A name of a package that is not installed comes with the line that installs the package."""

import signal
import tomllib
from pathlib import Path

import pytest

from areal_sdk.cli.main import main
from areal_sdk.config import load_config
from areal_sdk.errors import ConfigError, packages
from areal_sdk.errors.packages import PACKAGES, Package
from areal_sdk.plugins import load_plugins

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NOT_HOOKS = {"setting", "option"}
"""Kinds that no hook registers."""
INSTALLED = [package for package in PACKAGES if package.is_installed]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moon package is one that nobody has."""
    brings = {
        "launcher": ("moon",),
        "command": ("land",),
        "setting": ("run.orbit",),
        "option": ("runs --crater",),
    }
    moon = Package("areal-sdk-moon", brings, extra="moon")
    monkeypatch.setattr(packages, "PACKAGES", [moon])


def run(arguments: list[str]) -> object:
    handler = signal.getsignal(signal.SIGINT)
    try:
        main(arguments)
    except SystemExit as ended:
        return ended.code
    finally:  # a command that ends ignores Ctrl-C from then on; here the process goes on
        signal.signal(signal.SIGINT, handler)


CURE = r'comes with areal-sdk-moon: pip install "areal-sdk\[moon\]"'


@pytest.mark.usefixtures("nothing_installed")
def test_a_launcher_of_a_package_that_is_missing_names_the_line_to_install() -> None:
    with pytest.raises(ConfigError, match=f"launcher 'moon' {CURE}"):
        load_plugins().launchers.get("moon")


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("key", ["run.orbit", "run.orbit.height"])
def test_a_setting_of_a_package_that_is_missing_names_the_line_to_install(key: str) -> None:
    with pytest.raises(ConfigError, match=f"setting '{key}' {CURE}"):
        load_config(settings=[f"{key}=1"])


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [(["land"], "command 'land'"), (["runs", "--crater"], "option 'runs --crater'")],
    ids=["command", "option"],
)
def test_a_command_of_a_package_that_is_missing_names_the_line_to_install(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err == f"error: {what} " + CURE.replace("\\", "") + "\n"


def test_a_clone_installs_a_package_from_its_own_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "SOURCES", tmp_path / "with a space")
    moon = Package("areal-sdk-moon", {}, extra="moon")
    assert moon.cure == 'pip install "areal-sdk[moon]"'
    source = tmp_path / "with a space" / "areal-sdk-moon"
    source.mkdir(parents=True)
    (source / "pyproject.toml").touch()
    assert moon.cure == f"pip install '{source}'"


def test_a_clone_installs_what_a_package_needs_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "SOURCES", tmp_path)
    needed = {"areal-sdk-moon": ["areal-sdk>=0.1", "areal-sdk-sun>=0.1,<0.2"], "areal-sdk-sun": []}
    for name, dependencies in needed.items():
        (tmp_path / name).mkdir()
        described = f"[project]\ndependencies = {dependencies}\n"
        (tmp_path / name / "pyproject.toml").write_text(described)
    moon = Package("areal-sdk-moon", {})
    assert moon.cure == f"pip install {tmp_path}/areal-sdk-sun {tmp_path}/areal-sdk-moon"


def test_a_name_that_no_package_brings_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown launcher 'sun'; known: "):
        load_plugins().launchers.get("sun")


@pytest.mark.parametrize("package", INSTALLED, ids=lambda package: package.name)
def test_a_row_lists_what_its_package_registers(package: Package) -> None:
    reports = {report.distribution: report for report in load_plugins().report()}
    hooks = {kind: list(names) for kind, names in package.brings.items() if kind not in NOT_HOOKS}
    found = reports[package.name].brings if package.name in reports else {}
    assert {k: sorted(v) for k, v in found.items()} == hooks


def test_every_package_of_this_repository_has_a_row_and_its_extra_brings_it() -> None:
    here = {path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml")}
    assert {package.name for package in PACKAGES} == here
    page = (ROOT / "docs" / "plugins.md").read_text()
    for package in PACKAGES:
        assert f"](../plugins/{package.name})" in page
        if package.extra:
            assert any(line.startswith(package.name) for line in EXTRAS[package.extra])


def test_the_extra_all_is_every_extra_that_users_may_have_together() -> None:
    (line,) = EXTRAS["all"]
    listed = line.removeprefix("areal-sdk[").removesuffix("]").split(",")
    assert sorted(listed) == sorted(EXTRAS.keys() - {"all", "dev"})
