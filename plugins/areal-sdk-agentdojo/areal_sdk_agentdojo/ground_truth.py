"""The known solutions of AgentDojo: the calls that do what the user asked, or what the attacker wants."""

from collections.abc import Iterator, Sequence

from agentdojo.functions_runtime import FunctionCall

from areal_sdk_agentdojo.case import Case


def user_calls(case: Case) -> list[FunctionCall]:
    """The calls that solve the user's task."""
    return list(case.user_task.ground_truth(case.environment()))


def attacker_calls(case: Case) -> list[FunctionCall]:
    """The calls that reach the attacker's goal; none where nobody attacks."""
    if case.injection_task is None:
        return []
    return list(case.injection_task.ground_truth(case.environment()))


def needed_functions(case: Case) -> set[str]:
    """The names of the functions in both."""
    return set(_names([*user_calls(case), *attacker_calls(case)]))


def _names(calls: Sequence[FunctionCall]) -> Iterator[str]:
    for call in calls:
        yield call.function
        yield from _names(
            [value for value in call.args.values() if isinstance(value, FunctionCall)]
        )
