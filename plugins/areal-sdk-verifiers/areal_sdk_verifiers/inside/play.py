"""Lists and plays the tasks of a taskset, as a script of the Python that has verifiers. It needs nothing of areal-sdk.

`play.py list`: an order on stdin, then a line of JSON for each task. `play.py serve`: orders on stdin, a line of JSON each, many
at the same time; each is answered by a line with its `id`. It ends with its input.
"""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from itertools import islice

HARNESS = "areal_sdk_session"


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a taskset prints is no answer
    if sys.argv[1] == "list":
        order = json.loads(sys.stdin.readline())
        for task in islice(environment_of(order["env"]).taskset, order["count"]):
            told = {"idx": task.data.idx, "key": task.key, "name": task.data.name or task.data.id}
            answers.write(json.dumps({**told, "prompt": task.data.prompt_text[:1000]}) + "\n")
        answers.close()
    else:
        asyncio.run(Player(answers).serve())


def environment_of(config):
    """The environment of a config, as verifiers makes it from one. A seat without a harness has the one of areal-sdk."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils import loaders

    taskset, paired = config["taskset"]["id"], config.get("id", "")
    environment = loaders.environment_class(taskset, paired)
    config_class = loaders.env_config_type(taskset, paired)
    default = loaders.default_harness_id(taskset)
    whole = dict(config)
    for seat in agent_config_fields(config_class()):
        own = dict(whole.get(seat) or {})
        if default == "bash":
            own.setdefault("harness", {"id": HARNESS})
        own.setdefault("runtime", {"type": "subprocess"})
        whole[seat] = own
    return environment(config_class.model_validate(whole))


class Player:
    """Plays episodes, many at the same time. An environment is opened once and kept."""

    def __init__(self, answers):
        self._answers = answers
        self._opened = {}
        self._locks = {}
        self._playing = {}

    async def serve(self):
        loop = asyncio.get_running_loop()
        orders = asyncio.StreamReader(limit=1 << 26)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        async with AsyncExitStack() as self._stack:
            while line := await orders.readline():
                order = json.loads(line)
                if order["do"] == "cancel":
                    if playing := self._playing.get(order["id"]):
                        playing.cancel()
                    continue
                playing = asyncio.create_task(self._answer(order))
                self._playing[order["id"]] = playing
                playing.add_done_callback(lambda _, done=order["id"]: self._playing.pop(done))
            for playing in list(self._playing.values()):
                playing.cancel()
            await asyncio.gather(*self._playing.values(), return_exceptions=True)

    async def _answer(self, order):
        try:
            answer = await self._play(order)
        except Exception as error:  # noqa: BLE001 - it is the episode's, and the other side says so
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._answers.write(json.dumps({"id": order["id"], **answer}) + "\n")
        self._answers.flush()

    async def _play(self, order):
        import verifiers.v1 as vf

        opened = await self._environment(order["env"])
        task = opened.task(order["idx"])
        if task.key != order["key"]:
            return {"error": f"task {order['idx']} is another one now: list the tasks again"}
        # The address names the session, so no key is needed.
        client = vf.EvalClientConfig(base_url=order["base_url"], api_key_var="AREAL_SDK_NO_KEY")
        context = vf.ModelContext(model=order["model"], client=client)
        episode = await opened.environment.run_episode(task, context)
        return verdict_of(episode)

    async def _environment(self, config):
        name = json.dumps(config, sort_keys=True)
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self._opened:
                environment = await asyncio.to_thread(environment_of, config)
                await self._stack.enter_async_context(environment.serving())
                self._opened[name] = Opened(environment)
            return self._opened[name]


class Opened:
    """An environment, and its tasks as far as they were asked for."""

    def __init__(self, environment):
        self.environment = environment
        self._coming = iter(environment.taskset)
        self._tasks = []

    def task(self, idx):
        while len(self._tasks) <= idx:
            self._tasks.append(next(self._coming))
        return self._tasks[idx]


def verdict_of(episode):
    """The reward of the one agent that played, or what went wrong."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        told = "; ".join(f"{error.type}: {error.message}" for error in errors[-3:])
        return {"error": told or "the episode has failed without an error"}
    if len(episode.traces) != 1:
        return {"error": f"{len(episode.traces)} agents played, and one session has one verdict"}
    (trace,) = episode.traces
    given = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    numbers = {**trace.metrics, **{name: reward.score for name, reward in given.items()}}
    metrics = {name: value for name, value in numbers.items() if value is not None}
    return {"reward": trace.reward if given else None, "metrics": metrics}


if __name__ == "__main__":
    main()
