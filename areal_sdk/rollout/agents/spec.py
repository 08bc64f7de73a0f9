"""The place where an agent is defined, and its options: enough for any process to make the agent."""

import functools
import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any, Self, cast

from areal_sdk.agent import AgentForm, AgentLike
from areal_sdk.environment import Environment
from areal_sdk.errors import ConfigError
from areal_sdk.plugins import load_plugins, validate_options
from areal_sdk.process import JSON
from areal_sdk.process.user_code import REGISTERED, load_user_object, reference_to
from areal_sdk.rollout.agents.adapters import AgentInForm
from areal_sdk.rollout.agents.environment import EnvironmentAgent

NUM_ARGUMENTS = 2
"""Number of arguments of an agent function; the parameters after them are options."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The place where an agent (or an environment to play) is defined, and its options. Travels as JSON."""

    name: str
    reference: str
    """`file.py::Name`, `package.module:Name`, or `registered:NAME` for an environment that `python` has."""
    options: Mapping[str, Any] = field(default_factory=dict)
    table: str = "agent"
    """The settings table that the options come from; error messages name it."""
    step_timeout_s: float = 60.0
    """Deadline of one step of an environment."""
    python: str = ""
    """The Python of a virtual environment that has the environment's plugin; empty: this one."""
    form: str = ""
    """Reference of the `AgentForm` of a plugin that plays this agent; empty: the core plays it."""

    @property
    def is_isolated(self) -> bool:
        return bool(self.python)

    @classmethod
    def of(
        cls,
        item: object,
        *,
        name: str,
        module: ModuleType | None = None,
        options: Mapping[str, Any] | None = None,
        table: str = "agent",
        step_timeout_s: float = 60.0,
        form: str = "",
    ) -> Self:
        """The spec of an item that `make_agent` takes; ConfigError if another process could not import it.

        An instance is found by its name in `module`.
        """
        options = options or {}
        check_options(item, options, table=table)
        reference = reference_to(item, module=module)
        return cls(name, reference, dict(options), table, step_timeout_s, form=form)

    def make(self) -> AgentLike:
        """Make the agent. Imports the module that defines it."""
        if self.reference.startswith(REGISTERED):
            item: object = load_plugins().environments.get(self.reference.removeprefix(REGISTERED))
        else:
            item = load_user_object(self.reference)
        return make_agent(
            item,
            name=self.name,
            options=self.options,
            table=self.table,
            step_timeout_s=self.step_timeout_s,
            form=load_user_object(self.form) if self.form else None,
        )

    def as_json(self) -> JSON:
        return asdict(self)


def make_agent(
    item: object,
    *,
    name: str,
    options: Mapping[str, Any],
    table: str = "agent",
    step_timeout_s: float = 60.0,
    form: AgentForm | None = None,
) -> AgentLike:
    """An agent from a class, a function or an instance, played by its `form`; for an environment, the agent that plays it."""
    values = check_options(item, options, table=table)
    if inspect.isclass(item) and issubclass(item, Environment):
        make = functools.partial(item, **values)
        return EnvironmentAgent(make, name=name, step_timeout_s=step_timeout_s)
    if inspect.isclass(item):
        item, values = item(**values), {}
    if form is not None:
        return AgentInForm(name, item, form)
    if values:
        assert callable(item)
        return functools.update_wrapper(functools.partial(item, **values), item)
    return cast(AgentLike, item)


def check_options(item: object, options: Mapping[str, Any], *, table: str) -> dict[str, object]:
    """`options`, converted to the types that `item` declares."""
    if inspect.isclass(item):
        return validate_options(item, options, table=table)
    if not options:
        return {}  # a function keeps its defaults
    if not callable(item):
        raise ConfigError(
            f"[{table}] takes no options: {type(item).__name__} was made already; pass the class"
        )
    return validate_options(item, options, table=table, skip=NUM_ARGUMENTS)
