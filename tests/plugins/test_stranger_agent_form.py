"""Agents in a form that a plugin brings are found, played, and carried to other processes."""

import json
import logging
from pathlib import Path

import pytest

from areal_sdk import Agent, EpisodeContext, Task
from areal_sdk.config import load_config
from areal_sdk.errors import ConfigError, PluginError, packages
from areal_sdk.loop.evaluation.standalone import takes_tokens
from areal_sdk.loop.plan.program import Program, load_program
from areal_sdk.plugins import Plugins, forms, load_plugins
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.testing import run_agent
from tests.plugins.conftest import Install

CHAINS = Path(__file__).parent / "strangers" / "chains.py"
TASK = {"question": "2+2?", "answer": "FOUR"}
AGENTS = """
class Shout:
    def __init__(self, ending: str = ""):
        self.links = [str.upper, lambda text: text + ending]
    links = ()

shout = Shout()
"""


class Shout:
    links = (str.upper,)


def with_chains() -> Plugins:
    return load_plugins(files=[CHAINS])


def program(tmp_path: Path, plugins: Plugins, *settings: str, name: str = "") -> Program:
    """The program of a file with such agents."""
    file = tmp_path / "agents.py"
    file.write_text(AGENTS)
    named = f"{file}::{name}" if name else str(file)
    return load_program(load_config(overrides={"agent": named}, settings=settings), plugins=plugins)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "settings", "answer"), [("", ["agent.ending=!"], "FOUR!"), ("shout", [], "FOUR")]
)
async def test_an_agent_in_a_plugins_form_is_found_and_plays(
    name: str, settings: list[str], answer: str, workers: int, tmp_path: Path
) -> None:
    asked = [*settings, f"rollout.workers={workers}"]
    agent = program(tmp_path, with_chains(), *asked, name=name).agent
    assert takes_tokens(agent)
    if isinstance(agent, AgentSpec):  # in another process, which loads no plugins
        agent = AgentSpec(**json.loads(json.dumps(agent.as_json()))).make()
    episode = await run_agent(agent, TASK | {"answer": answer}, engine="four")
    assert episode.outcome.message == ""
    assert episode.reward == 1.0


def test_without_the_plugin_it_is_no_agent(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no agent in"):
        program(tmp_path, load_plugins())


def test_a_form_in_the_agents_own_file_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "both.py"
    file.write_text(CHAINS.read_text() + AGENTS)
    config = load_config(overrides={"agent": str(file)})
    assert load_program(config, plugins=load_plugins()).name == "Shout"


async def test_a_test_plays_it_as_a_run_does(install: Install) -> None:
    install("areal-sdk-chains", CHAINS.read_text())
    for agent in (Shout, Shout()):
        assert (await run_agent(agent, TASK, engine="four")).reward == 1.0  # type: ignore[arg-type]


def test_an_object_in_the_form_of_two_plugins_is_told_whose(install: Install) -> None:
    install("areal-sdk-chains", CHAINS.read_text())
    install("areal-sdk-links", CHAINS.read_text().replace('"chain"', '"link"'))
    with pytest.raises(
        PluginError,
        match="'chain' of areal-sdk-chains and 'link' of areal-sdk-links: uninstall one, or set "
        "AREAL_SDK_DISABLE_PLUGINS=areal-sdk-links",
    ):
        load_plugins().agent_forms.find(Shout)


def test_a_form_that_cannot_be_imported_stops_no_other_agent(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("areal-sdk-chains", CHAINS.read_text().replace('chain", CHAIN', 'chain", "nowhere:X"'))
    with caplog.at_level(logging.WARNING):
        assert load_plugins().agent_forms.find(Shout) == ""
    assert "agent_form 'chain' of areal-sdk-chains" in caplog.text
    assert "it is left out" in caplog.text


def test_the_package_of_a_form_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    moon = packages.Package("areal-sdk-moon", {"agent_form": ("links",)}, extra="moon")
    monkeypatch.setattr(forms, "PACKAGES", [moon])
    with pytest.raises(
        ConfigError,
        match="Shout is an agent by its 'links', which areal-sdk-moon plays: pip install ",
    ):
        load_plugins().agent_forms.find(Shout())


def test_an_item_that_is_no_form_is_refused(install: Install) -> None:
    install("areal-sdk-chains", CHAINS.read_text().replace('chain", CHAIN', 'chain", ask'))
    assert "must be a AgentForm" in " ".join(load_plugins().failures())


class Solver(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> float:
        return 1.0


def test_a_form_that_fits_everything_takes_nothing_that_the_core_plays(install: Install) -> None:
    source = CHAINS.read_text().replace('lambda cls: hasattr(cls, "links")', "lambda cls: True")
    install("areal-sdk-chains", source)
    forms = load_plugins().agent_forms
    assert forms.find(Shout) == "chain"
    assert [forms.find(item) for item in (Solver, Solver(), with_chains, len)] == [""] * 4
