"""Tasks of Inspect: short answers, judged by several scorers, choices, and a vault that only a tool opens."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import (
    Score,
    Target,
    accuracy,
    choice,
    exact,
    includes,
    match,
    mean,
    model_graded_fact,
    scorer,
)
from inspect_ai.solver import (
    TaskState,
    basic_agent,
    generate,
    multiple_choice,
    prompt_template,
    system_message,
    use_tools,
)
from inspect_ai.tool import tool

CAPITALS = {"France": "Paris", "Italy": "Rome", "Peru": "Lima", "Egypt": "Cairo"}
WORDS = ("pear", "plum", "date", "kiwi")


def capitals():
    return [Sample(f"The capital of {land}?", target=city) for land, city in CAPITALS.items()]


@task
def sums(first: int = 0, count: int = 20):
    """Judged by the end of the answer."""
    print("a task may print")  # noqa: T201
    samples = [
        Sample(id=f"sum-{n}", input=f"{n} + 7?", target=str(n + 7))
        for n in range(first, first + count)
    ]
    return Task(dataset=samples, solver=[system_message("Be short."), generate()], scorer=match())


@task
def lands():
    """Judged by a word of the answer. The prompt has a template."""
    solver = [prompt_template("Say it in a sentence.\n{prompt}"), generate()]
    return Task(dataset=capitals(), solver=solver, scorer=includes())


@task
def both():
    """Two scorers, and a third with several values."""
    return Task(dataset=capitals(), scorer=[exact(), includes(), sizes()])


@scorer(metrics={"*": [mean()]})
def sizes():
    async def score(state: TaskState, target: Target) -> Score:
        said = state.output.completion
        return Score(value={"length": len(said), "is_short": len(said) < 10, "kind": 0.5})

    return score


@scorer(metrics=[accuracy()])
def silent():
    """No verdict on an empty answer, and a word on a long one."""

    async def score(state: TaskState, target: Target) -> Score:
        said = state.output.completion
        if not said:
            return Score.unscored()
        return Score(value="strange" if len(said) > 20 else "P")

    return score


@task
def letters():
    """A choice of two, in which the answer is a letter."""
    samples = [
        Sample(f"The capital of {land}?", choices=["Oslo", city], target="B")
        for land, city in CAPITALS.items()
    ]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())


@task
def judged():
    """Judged by a model, for which the policy is no stand-in."""
    return Task(dataset=capitals(), scorer=model_graded_fact())


@task
def unsure():
    return Task(dataset=capitals(), scorer=silent())


@tool
def open_shelf():
    async def execute(number: int) -> str:
        """The word on a shelf.

        Args:
            number: The shelf.
        """
        return WORDS[number]

    return execute


def shelves():
    return [
        Sample(f"Say the word on shelf {shelf} backwards.", target=word[::-1])
        for shelf, word in enumerate(WORDS)
    ]


@task
def vault():
    """A tool, called until an answer comes without a call."""
    solver = [use_tools(open_shelf()), generate()]
    return Task(dataset=shelves(), solver=solver, scorer=exact())


@task
def agent():
    """The same with an agent of Inspect, which ends by a call of `submit`."""
    solver = basic_agent(tools=[open_shelf()], message_limit=12)
    return Task(dataset=shelves(), solver=solver, scorer=exact())


@task
def dies():
    """The process of the episode dies while the sample is judged."""
    return Task(dataset=capitals()[:1], scorer=deadly())


@scorer(metrics=[accuracy()])
def deadly():
    async def score(state: TaskState, target: Target) -> Score:
        import os

        os.kill(os.getpid(), 9)

    return score
