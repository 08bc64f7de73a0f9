"""A taskset of verifiers on which any model earns something: the share of vowels in the answer."""

import verifiers.v1 as vf

__all__ = ["Vowels"]


class VowelTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def vowels(self, trace) -> float:
        said = trace.last_reply.lower()
        return sum(said.count(vowel) for vowel in "aeiou") / max(1, len(said))


class Vowels(vf.Taskset[VowelTask, vf.TasksetConfig]):
    def load(self):
        for number in range(16):
            yield VowelTask(vf.TaskData(name=f"vowels-{number}", prompt=f"Sing {number}."))
