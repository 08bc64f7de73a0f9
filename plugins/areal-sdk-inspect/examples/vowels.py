"""A task of Inspect on which any model earns something: the share of vowels in the answer."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, mean, scorer
from inspect_ai.solver import TaskState


@task
def vowels():
    samples = [Sample(id=f"vowels-{n}", input=f"Sing {n}.") for n in range(16)]
    return Task(dataset=samples, scorer=share_of_vowels())


@scorer(metrics=[mean()])
def share_of_vowels():
    async def score(state: TaskState, target: Target) -> Score:
        said = state.output.completion.lower()
        return Score(value=sum(said.count(vowel) for vowel in "aeiou") / max(1, len(said)))

    return score
