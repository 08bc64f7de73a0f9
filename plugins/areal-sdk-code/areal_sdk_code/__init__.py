"""Code: a reward by unit tests and a Python tool, both in a sandbox."""

from areal_sdk import hookimpl
from areal_sdk_code.tool import PythonTool

__all__ = ["PythonTool"]


@hookimpl
def register_rewards(register):  # type: ignore[no-untyped-def]
    register("unit_tests", "areal_sdk_code.rewards:unit_tests")


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("python_tool", "areal_sdk_code.environment:PythonToolEnvironment")


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("python_problems", "areal_sdk_code.problems:tasks")
