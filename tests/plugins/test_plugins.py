"""Plugins load, are blamed by distribution when they break, and never fail silently."""

import inspect
import logging
import sys
from pathlib import Path

import pytest

from areal_sdk import hookspecs
from areal_sdk.errors import ConfigError, PluginError
from areal_sdk.plugins import PluginReport, Plugins, Status, load_plugins
from areal_sdk.plugins.checks import HOOKS
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import Episode, Outcome, Task
from tests.plugins.conftest import Install

GOOD = """
import areal_sdk

def always(episode, *, value: float = 1.0):
    return value

@areal_sdk.hookimpl
def register_rewards(register):
    register("always", always)
"""

EPISODE = Episode("e", Task("t"), (), Outcome.abstained())


def report_of(plugins: Plugins, distribution: str) -> PluginReport:
    return next(r for r in plugins.report() if r.distribution == distribution)


def test_an_installed_plugin_is_found_and_its_version_recorded(install: Install) -> None:
    install("areal-sdk-good", GOOD, version="2.5")
    plugins = load_plugins()
    report = report_of(plugins, "areal-sdk-good")
    assert (report.status, report.version) == (Status.LOADED, "2.5")
    assert report.brings == {"reward": ["always"]}
    assert plugins.installed_versions()["areal-sdk-good"] == "2.5"
    assert plugins.configure("reward", "always", {"value": 3})(EPISODE) == 3.0


def test_the_built_ins_come_through_the_same_door() -> None:
    report = report_of(load_plugins(), "areal-sdk")
    assert (report.name, report.status) == ("builtin", Status.LOADED)
    assert "exact_match" in report.brings["reward"]


def test_a_plugin_that_cannot_be_imported_is_blamed_and_the_others_work(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("areal-sdk-broken", "import no_such_package")
    install("areal-sdk-good", GOOD)
    plugins = load_plugins()
    assert "always" in plugins.rewards
    report = report_of(plugins, "areal-sdk-broken")
    assert report.status is Status.FAILED
    assert report.error == "ModuleNotFoundError: No module named 'no_such_package'"
    assert plugins.failures() == [f"plugin areal-sdk-broken: {report.error}"]
    assert plugins.failures() == caplog.messages


def test_a_plugin_that_exits_at_import_is_contained(install: Install) -> None:
    install("areal-sdk-exits", "raise SystemExit('bye')")
    assert report_of(load_plugins(), "areal-sdk-exits").error == "SystemExit: bye"


def test_a_missing_name_mentions_the_broken_plugin_that_may_have_brought_it(
    install: Install,
) -> None:
    install("areal-sdk-broken", "import no_such_package")
    with pytest.raises(ConfigError, match=r"unknown reward 'x'.*areal-sdk-broken might have"):
        load_plugins().rewards.get("x")


def test_an_unknown_name_suggests_a_near_one(install: Install) -> None:
    install("areal-sdk-good", GOOD)
    with pytest.raises(ConfigError, match=r"known: .*always, .*did you mean 'always'\?"):
        load_plugins().rewards.get("alway")


def test_two_distributions_with_one_name_are_both_named_and_neither_wins(install: Install) -> None:
    install("areal-sdk-one", GOOD)
    install("areal-sdk-two", GOOD)
    plugins = load_plugins()
    wanted = "'always' is registered twice, by areal-sdk-one and by areal-sdk-two"
    with pytest.raises(PluginError, match=wanted):
        plugins.rewards.get("always")
    assert any(wanted in line for line in plugins.failures())
    assert report_of(plugins, "areal-sdk-one").conflicts


def test_one_plugin_cannot_register_a_name_twice(install: Install) -> None:
    install("areal-sdk-twice", GOOD + "    register('always', always)\n")
    plugins = load_plugins()
    assert "registered twice by areal-sdk-twice" in report_of(plugins, "areal-sdk-twice").error
    assert "always" not in plugins.rewards


def test_a_plugin_that_fails_half_way_leaves_nothing_behind(install: Install) -> None:
    install("areal-sdk-half", GOOD + "    raise RuntimeError('half way')\n")
    plugins = load_plugins()
    assert report_of(plugins, "areal-sdk-half").error == "RuntimeError: half way"
    assert "always" not in plugins.rewards


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (
            "@areal_sdk.hookimpl\ndef register_reward(register): ...",
            "no hook is called 'register_reward': did you mean 'register_rewards'?",
        ),
        (
            "def on_episode(episode): ...",
            "on_episode would never be called: decorate it with @areal_sdk.hookimpl",
        ),
        (
            "@areal_sdk.hookimpl\nasync def on_episode(episode): ...",
            "on_episode is a coroutine function: hooks are plain functions",
        ),
        (
            "@areal_sdk.hookimpl\ndef on_episode(epsiode): ...",
            "on_episode is never given 'epsiode', only: episode, dropped",
        ),
    ],
)
def test_a_hook_that_would_do_nothing_is_an_error(
    install: Install, source: str, error: str
) -> None:
    install("areal-sdk-typo", f"import areal_sdk\n{source}\n")
    report = report_of(load_plugins(), "areal-sdk-typo")
    assert report.status is Status.FAILED
    assert error in report.error


@pytest.mark.parametrize("name", ["areal-sdk-good", "areal_sdk_good", "main", "x, areal-sdk-good"])
def test_plugins_are_disabled_by_distribution_or_entry_point(
    install: Install, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = install("areal-sdk-good", GOOD)
    monkeypatch.setenv("AREAL_SDK_DISABLE_PLUGINS", name)
    plugins = load_plugins()
    assert report_of(plugins, "areal-sdk-good").status is Status.DISABLED
    assert module not in sys.modules
    with pytest.raises(ConfigError, match="disabled: areal-sdk-good"):
        plugins.rewards.get("always")


def test_a_reference_is_imported_on_first_use_only(install: Install, tmp_path: Path) -> None:
    (tmp_path / "site" / "plugin_heavy.py").write_text("def heavy(episode): return 7")
    install(
        "areal-sdk-lazy",
        "import areal_sdk\n@areal_sdk.hookimpl\n"
        "def register_rewards(register): register('heavy', 'plugin_heavy:heavy')",
    )
    plugins = load_plugins()
    assert report_of(plugins, "areal-sdk-lazy").brings == {"reward": ["heavy"]}
    assert "plugin_heavy" not in sys.modules
    assert plugins.rewards.get("heavy")(EPISODE) == 7


def test_a_reference_that_does_not_resolve_names_the_distribution(install: Install) -> None:
    install(
        "areal-sdk-lazy",
        "import areal_sdk\n@areal_sdk.hookimpl\n"
        "def register_rewards(register): register('gone', 'json:gone')",
    )
    with pytest.raises(PluginError, match=r"reward 'gone' of areal-sdk-lazy: json:gone: Attribut"):
        load_plugins().rewards.get("gone")


def test_a_missing_package_of_an_extra_says_what_to_install(install: Install) -> None:
    install(
        "areal-sdk-lazy",
        "import areal_sdk\n@areal_sdk.hookimpl\n"
        "def register_rewards(register): register('lazy', 'no_such_package.x:lazy')",
        requires='Provides-Extra: judge\nRequires-Dist: no-such-package>=1; extra == "judge"\n',
    )
    with pytest.raises(ConfigError, match=r'pip install "areal-sdk-lazy\[judge\]"'):
        load_plugins().rewards.get("lazy")


@pytest.mark.parametrize(
    ("hook", "item", "error"),
    [
        ("register_rewards", "3", "reward 'x' must be callable, not int"),
        ("register_rewards", "dict", "must be a function, not the class dict"),
        (
            "register_rewards",
            "lambda e, weight=1: 0",
            "an option called 'weight', which is the run",
        ),
        ("register_environments", "dict", "must be a subclass of areal_sdk.Environment"),
        (
            "register_environments",
            "type('X', (areal_sdk.Environment,), {'__init__': lambda self, isolated=1: None})",
            "an option called 'isolated', which is the run",
        ),
        ("register_engines", "dict", "must be a subclass of areal_sdk.InferenceEngine"),
        ("register_rewards", "'no reference'", 'write "module:attribute"'),
    ],
)
def test_the_wrong_kind_of_thing_is_refused(
    install: Install, hook: str, item: str, error: str
) -> None:
    source = f"@areal_sdk.hookimpl\ndef {hook}(register): register('x', {item})\n"
    install("areal-sdk-wrong", f"import areal_sdk\n{source}")
    assert error in report_of(load_plugins(), "areal-sdk-wrong").error


def test_commands_are_registered_under_their_distribution(install: Install) -> None:
    install(
        "areal-sdk-cmd",
        "import areal_sdk\n@areal_sdk.hookimpl\ndef register_commands(group):\n"
        "    @group.command()\n    def hello(): ...\n",
    )
    plugins = load_plugins()
    assert report_of(plugins, "areal-sdk-cmd").brings == {"command": ["hello"]}
    assert plugins.commands.get("hello").name == "hello"


def test_a_broken_observer_is_reported_once_and_the_others_are_called(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    seen = "import areal_sdk\nseen = []\n@areal_sdk.hookimpl\n"
    install("areal-sdk-a", seen + "def on_episode(episode): raise ValueError('oh')\n")
    module = install("areal-sdk-b", seen + "def on_episode(episode): seen.append(episode.id)\n")
    plugins = load_plugins()
    with caplog.at_level(logging.WARNING):
        plugins.notify.on_episode(EPISODE, dropped="")
        plugins.notify.on_episode(EPISODE, dropped="")
    assert sys.modules[module].seen == ["e", "e"]
    assert len(caplog.records) == 1
    assert "areal-sdk-a:main: on_episode raised ValueError: oh" in caplog.text
    assert plugins.notify.failures["areal-sdk-a:main", "on_episode"] == 2


def test_every_observer_hook_can_be_notified(tmp_path: Path) -> None:
    observers = [name for name in HOOKS if name.startswith("on_")]
    notify = load_plugins(sources=()).notify
    for name in observers:
        spec = inspect.signature(getattr(hookspecs, name))
        assert inspect.signature(getattr(notify, name)) == spec


def test_a_users_file_is_a_plugin(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    plugins = load_plugins(files=[path])
    assert plugins.rewards.owners("always") == [str(path)]
    assert plugins.installed_versions()[str(path)].startswith("sha256:")
    plugins.register_file(path)  # the same file again changes nothing
    assert plugins.rewards.owners("always") == [str(path)]


def test_a_users_file_that_takes_a_taken_name_is_an_error_at_once(
    install: Install, tmp_path: Path
) -> None:
    install("areal-sdk-good", GOOD)
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    plugins = load_plugins()
    with pytest.raises(PluginError, match="'always' is registered twice, by areal-sdk-good and"):
        plugins.register_file(path)
    assert plugins.rewards.owners("always") == ["areal-sdk-good"]


def test_a_users_file_with_a_misspelt_hook_is_an_error_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(GOOD.replace("register_rewards", "register_rewrads"))
    with pytest.raises(PluginError, match="did you mean 'register_rewards'"):
        load_plugins(files=[path])


def test_engines_are_configured_to_instances(install: Install) -> None:
    install(
        "areal-sdk-engine",
        "import areal_sdk\n@areal_sdk.hookimpl\ndef register_engines(register):\n"
        "    register('scripted', 'areal_sdk.testing:ScriptedEngine')\n",
    )
    engine = load_plugins().configure("engine", "scripted", {"max_context": 12})
    assert isinstance(engine, ScriptedEngine)
    assert engine.info.max_context == 12
