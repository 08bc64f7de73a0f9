"""`pytest --areal`: the contract of a plugin as tests, one for each thing that it brings.

pytest imports this module in every environment that has areal-sdk, so it imports only pytest.
"""

import asyncio
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from areal_sdk.testing.plugins import Item, Options


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("areal", "areal-sdk: the contract of plugins")
    group.addoption(
        "--areal",
        action="store_true",
        help="Check the plugin of this project: everything that it brings, each as a test.",
    )
    group.addoption(
        "--areal-plugin",
        action="append",
        default=[],
        metavar="DISTRIBUTION",
        help="Check this installed plugin, in place of the one of this project.",
    )
    group.addoption(
        "--areal-set",
        action="append",
        default=[],
        metavar="TABLE.OPTION=VALUE",
        help="An option of an item for the check: reward.polite.word=please.",
    )
    group.addoption(
        "--areal-tasks",
        type=Path,
        metavar="FILE",
        help="Tasks (JSONL) to try rewards and environments on; default: the plugin's own.",
    )


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose among the items
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    for distribution in _distributions(config):
        contract = Contract.from_parent(
            session, name=distribution, nodeid=f"areal::{distribution}", distribution=distribution
        )
        config.add_cleanup(contract.close)
        items += contract.collect()


class Contract(pytest.Collector):
    """The contract of one installed plugin. One process loads the plugin for all of its tests."""

    def __init__(self, *, distribution: str, **node: Any) -> None:
        from areal_sdk.testing.plugins import Suspect

        super().__init__(**node)
        self.distribution = distribution
        self._options = _options(self.config.getoption("--areal-set"))
        self._tasks: Path | None = self.config.getoption("--areal-tasks")
        self._runner = asyncio.Runner()
        self._scratch = tempfile.TemporaryDirectory(prefix="areal-sdk-check-")
        self._suspect = Suspect(distribution, Path(self._scratch.name))

    def collect(self) -> "Iterator[ContractTest]":
        from areal_sdk.testing.conformance import ConformanceError

        try:
            items = self._runner.run(self._suspect.items())
        except ConformanceError as exc:
            yield ContractTest.from_parent(self, name="plugin", problem=exc)
            return
        yield ContractTest.from_parent(self, name="plugin")
        for item in items:
            yield ContractTest.from_parent(self, name=str(item), item=item)

    def check(self, item: "Item") -> None:
        checking = self._suspect.check(item, options=self._options, tasks=self._tasks)
        self._runner.run(checking)

    def close(self) -> None:
        self._runner.run(self._suspect.aclose())
        self._runner.close()
        self._scratch.cleanup()


class ContractTest(pytest.Item):
    """The test of one thing that the plugin brings; without `item`, the test that the plugin loads."""

    parent: Contract

    def __init__(
        self, *, item: "Item | None" = None, problem: Exception | None = None, **node: Any
    ) -> None:
        super().__init__(**node)
        self._item = item
        self._problem = problem

    def runtest(self) -> None:
        if self._problem is not None:
            raise self._problem
        if self._item is not None:
            self.parent.check(self._item)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message of a broken contract says everything; other failures keep their traceback."""
        from areal_sdk.testing.conformance import ConformanceError

        if isinstance(excinfo.value, ConformanceError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.parent.distribution}: {self.name}"


def _distributions(config: pytest.Config) -> list[str]:
    named: list[str] = config.getoption("--areal-plugin")
    if named or not config.getoption("--areal"):
        return named
    file = config.rootpath / "pyproject.toml"
    project = (
        tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) if file.is_file() else {}
    )
    if "name" not in project or "areal_sdk" not in project.get("entry-points", {}):
        raise pytest.UsageError(
            f"--areal checks the plugin of this project, and {file} is not a plugin's "
            "([project.entry-points.areal_sdk]): name an installed one, --areal-plugin DISTRIBUTION"
        )
    return [project["name"]]


def _options(settings: list[str]) -> "Options":
    from areal_sdk.config import load_config
    from areal_sdk.errors import ConfigError

    try:
        return load_config(settings=settings).options
    except ConfigError as exc:
        raise pytest.UsageError(f"--areal-set: {exc}") from None
