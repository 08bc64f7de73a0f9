"""A model as a judge: rewards through any OpenAI-compatible endpoint, and a check of the judge itself."""

from areal_sdk import hookimpl


@hookimpl
def register_rewards(register):  # type: ignore[no-untyped-def]
    register("judge", "areal_sdk_judge.rewards:judge")
    register("next_message", "areal_sdk_judge.reactions:next_message")


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_judge.command import judge
    from areal_sdk_judge.messages import judge_messages

    group.add_command(judge)
    group.add_command(judge_messages)
