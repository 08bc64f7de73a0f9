"""Several policies in one run: `model` names the one that answers, and each is trained."""

from areal_sdk import hookimpl


@hookimpl
def register_engines(register):  # type: ignore[no-untyped-def]
    register("policies", "areal_sdk_policies.engine:PolicyEngine")


@hookimpl
def register_trainers(register):  # type: ignore[no-untyped-def]
    register("policies", "areal_sdk_policies.trainer:make_trainer")
