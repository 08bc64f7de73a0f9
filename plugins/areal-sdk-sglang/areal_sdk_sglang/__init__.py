"""SGLang servers as the inference engine, over HTTP. They live in an environment of their own."""

from areal_sdk import hookimpl


@hookimpl
def register_engines(register):  # type: ignore[no-untyped-def]
    register("sglang", "areal_sdk_sglang.engine:SGLangEngine")


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_sglang.command import engine

    group.add_command(engine)
