"""The packages of this project that are installed apart from the core, and the names that each brings.

A package that moves out of the core gets a row here. A user who asks for a launcher, a command or a setting of a
missing package is then told the command that installs it, instead of that the name is unknown.
"""

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "plugins"
"""The sources of the packages, if the core was installed from a clone."""


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution of this project beside the core."""

    name: str
    brings: Mapping[str, Sequence[str]]
    """Names by kind. A kind is that of a registry (`"reward"`, `"launcher"`, `"command"`), or `"setting"`
    (`"run.mirror"` stands for the settings below it too), or `"option"` (`"serve --upstream"`)."""
    extra: str = ""
    """The extra of areal-sdk that installs it, if there is one."""

    @property
    def install(self) -> str:
        """The line that installs the package from a registry.

        >>> Package("areal-sdk-ray", {}, extra="ray").install, Package("areal-sdk-math", {}).install
        ('pip install "areal-sdk[ray]"', 'pip install areal-sdk-math')
        """
        return (
            f'pip install "areal-sdk[{self.extra}]"' if self.extra else f"pip install {self.name}"
        )

    @property
    def cure(self) -> str:
        """The command that installs the package beside this core. If the clone has its sources, the command installs
        them and those of the packages that it needs."""
        sources = _sources(self.name)
        return f"pip install {shlex.join(map(str, sources))}" if sources else self.install

    @property
    def is_installed(self) -> bool:
        try:
            distribution(self.name)
        except PackageNotFoundError:
            return False
        return True


PACKAGES = (
    Package(
        "areal-sdk-agentdojo",
        {"reward": ("agentdojo",), "environment": ("agentdojo",), "dataset": ("agentdojo",)},
    ),
    Package("areal-sdk-bfcl", {"environment": ("bfcl",), "dataset": ("bfcl",)}),
    Package("areal-sdk-cassettes", {"reward": ("cassette",), "environment": ("cassette",)}),
    Package(
        "areal-sdk-code",
        {
            "reward": ("unit_tests",),
            "environment": ("python_tool",),
            "dataset": ("python_problems",),
        },
    ),
    Package("areal-sdk-fork", dict.fromkeys(("command", "engine"), ("fork", "reread"))),
    Package(
        "areal-sdk-from-areal",
        {"agent_form": ("arun_episode",), "option": ("init --from-areal",)},
        extra="from-areal",
    ),
    Package(
        "areal-sdk-gymnasium",
        {"environment": ("gymnasium",), "dataset": ("frozen_lake_maps", "gymnasium")},
    ),
    Package("areal-sdk-harbor", dict.fromkeys(("agent", "dataset", "command"), ("harbor",))),
    Package("areal-sdk-inspect", dict.fromkeys(("agent", "dataset"), ("inspect",))),
    Package(
        "areal-sdk-judge",
        {"reward": ("judge", "next_message"), "command": ("judge", "judge-messages")},
    ),
    Package(
        "areal-sdk-math",
        {
            "reward": ("boxed_answer", "final_number", "hash_answer", "math_answer"),
            "dataset": ("gsm8k",),
        },
    ),
    Package("areal-sdk-mcp", {"environment": ("mcp",)}),
    Package(
        "areal-sdk-mirror",
        {"command": ("fetch",), "setting": ("run.mirror",)},
        extra="mirror",
    ),
    Package("areal-sdk-openenv", {"environment": ("openenv",), "dataset": ("openenv",)}),
    Package("areal-sdk-otel", {"observer": ("otel",)}),
    Package("areal-sdk-plan", {"command": ("plan",)}, extra="plan"),
    Package(
        "areal-sdk-policies",
        {"engine": ("policies",), "trainer": ("policies",), "setting": ("policy",)},
        extra="policies",
    ),
    Package("areal-sdk-probe", {"command": ("probe",), "engine": ("replay",)}, extra="probe"),
    Package("areal-sdk-ray", {"launcher": ("ray",)}, extra="ray"),
    Package(
        "areal-sdk-reasoning-gym",
        dict.fromkeys(("reward", "environment", "dataset"), ("reasoning_gym",)),
    ),
    Package("areal-sdk-sandbox", {"setting": ("agent.sandbox",)}, extra="sandbox"),
    Package("areal-sdk-sglang", {"engine": ("sglang",), "command": ("engine",)}, extra="sglang"),
    Package("areal-sdk-shared", {}),
    Package("areal-sdk-textarena", {"agent": ("textarena",), "dataset": ("textarena",)}),
    Package("areal-sdk-textgames", {"environment": ("mastermind",), "dataset": ("mastermind",)}),
    Package(
        "areal-sdk-traces",
        {"command": ("traces",), "route": ("traces_list", "traces_rate", "traces_show")},
        extra="traces",
    ),
    Package("areal-sdk-trackers", {"observer": ("mlflow", "tensorboard", "trackio", "wandb")}),
    Package("areal-sdk-upstream", {"backend": ("upstream",)}, extra="upstream"),
    Package("areal-sdk-verifiers", dict.fromkeys(("agent", "dataset"), ("verifiers",))),
    Package("areal-sdk-view", {"command": ("view",), "observer": ("view",)}, extra="view"),
)


def _sources(name: str) -> list[Path]:
    """The sources of the packages of this project that the package needs, then its own; empty outside of a clone."""
    file = SOURCES / name / "pyproject.toml"
    if not file.is_file():
        return []
    described = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    needed = described.get("dependencies", ())
    own = filter(None, (re.match(r"areal-sdk-[a-z0-9-]+", line) for line in needed))
    return [*chain(*(_sources(found[0]) for found in own)), SOURCES / name]


def missing_package(kind: str, name: str) -> Package | None:
    """The package that brings `name` and is not installed, if there is one."""
    for package in PACKAGES:
        named = package.brings.get(kind, ())
        is_below = kind == "setting" and any(name.startswith(f"{one}.") for one in named)
        if (name in named or is_below) and not package.is_installed:
            return package
    return None


def how_to_install(kind: str, name: str) -> str:
    """The cure for an unknown name; empty if no missing package brings the name."""
    package = missing_package(kind, name)
    return f"{kind} {name!r} comes with {package.name}: {package.cure}" if package else ""
