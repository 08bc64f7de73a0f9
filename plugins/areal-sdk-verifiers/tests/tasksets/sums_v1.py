"""A taskset of verifiers: sums, judged by the last number of the answer."""

import re

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumData(vf.TaskData):
    total: int


class SumsConfig(vf.TasksetConfig):
    count: int = 20
    first: int = 0


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace) -> float:
        numbers = re.findall(r"\d+", trace.last_reply)
        return float(numbers[-1:] == [str(self.data.total)])

    @vf.reward(weight=0.5)
    async def is_short(self, trace) -> float:
        return float(self.data.total >= 0 and len(trace.last_reply) < 10)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        print("a taskset may print")  # noqa: T201
        for number in range(self.config.first, self.config.first + self.config.count):
            data = SumData(name=f"sum-{number}", prompt=f"{number} + 7?", total=number + 7)
            yield SumTask(data, self.config.task)
