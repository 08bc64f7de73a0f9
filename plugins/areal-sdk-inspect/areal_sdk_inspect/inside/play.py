"""Lists and plays samples of tasks of Inspect, as a script of the Python that has Inspect. It needs nothing of areal-sdk.

`play.py list`: an order on stdin, then a line of JSON for each sample. `play.py serve`: orders on stdin, a line of JSON each;
each is answered by a line with its `id`. It ends with its input.

Inspect refuses two evaluations in one process. So `serve` imports Inspect and the task once, and forks for each
episode. The fork sees the task as it was loaded, and nothing that another episode left.
"""

import hashlib
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

_MAX_READ = 1 << 16


def main():
    answers = os.dup(1)
    os.dup2(2, 1)  # what a task prints is no answer
    if sys.argv[1] == "list":
        told = listed(json.loads(sys.stdin.readline()))
        _write(answers, "".join(json.dumps(one) + "\n" for one in told).encode())
    else:
        Forks(answers).serve()


def listed(order):
    """The samples of a task, after a check that one score counts."""
    task = loaded(order["spec"])
    if order["score"] == "" and len(task.scorer or ()) > 1:
        names = ", ".join(map(_name_of, task.scorer))
        sys.exit(f'the task has the scorers {names}: name one: [tasks.inspect] score = "..."')
    name = task.name.rpartition("/")[2]
    for index, sample in enumerate(task.dataset):
        if index == order["count"]:
            return
        id = index + 1 if sample.id is None else sample.id
        told = {"task": name, "id": str(id), "index": index, "key": key_of(sample)}
        yield {**told, "prompt": _text_of(sample)[:1000]}


def loaded(spec):
    """The task that a specification names."""
    from inspect_ai import list_tasks
    from inspect_ai._eval.loader import load_tasks

    named = spec["task"]
    if named.endswith(".py"):
        folder, file = os.path.split(named)
        names = [found.name for found in list_tasks([file], root_dir=Path(folder))]
        if len(names) != 1:
            told = ", ".join(names) or "none"
            sys.exit(f"{named} has the tasks {told}: name one, as FILE.py@NAME")
        named = f"{named}@{names[0]}"
    (task,) = load_tasks([named], spec["args"])
    return task


def key_of(sample):
    """A digest of the sample, which notices a task that has changed. Inspect may give a sample an id, which is no change."""
    content = sample.model_dump_json(exclude={"id"}, exclude_none=True, fallback=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _text_of(sample):
    said = sample.input
    return said if isinstance(said, str) else "\n".join(message.text for message in said)


def _name_of(scorer):
    from inspect_ai._util.registry import registry_unqualified_name

    return registry_unqualified_name(scorer)


class Forks:
    """One process for each episode."""

    def __init__(self, answers):
        self._answers = answers
        self._tasks = {}
        self._running = {}
        self._selector = selectors.DefaultSelector()

    def serve(self):
        import inspect_ai  # noqa: F401 - the forks have it too
        import session  # noqa: F401 - registers the model

        rest = b""
        self._selector.register(0, selectors.EVENT_READ)
        while True:
            for ready, _ in self._selector.select():
                if ready.fd != 0:
                    self._read(ready.data)
                    continue
                read = os.read(0, _MAX_READ)
                if not read:
                    for fork in list(self._running.values()):
                        self._end(fork)
                    return
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))

    def _take(self, order):
        if order["do"] == "play":
            self._play(order)
        elif fork := self._running.get(order["id"]):
            self._end(fork)

    def _play(self, order):
        name = json.dumps(order["spec"], sort_keys=True)
        try:
            if name not in self._tasks:
                self._tasks[name] = loaded(order["spec"])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the episode's, and the other side says so
            self._answer(order["id"], {"error": f"{type(error).__name__}: {error}"})
            return
        fork = Fork(order, self._tasks[name])
        fork.start(close=[self._answers, *(one.pipe for one in self._running.values())])
        self._running[order["id"]] = fork
        self._selector.register(fork.pipe, selectors.EVENT_READ, fork)

    def _read(self, fork):
        read = os.read(fork.pipe, _MAX_READ)
        fork.told += read
        if read:
            return
        self._end(fork)
        # Without an answer the process died, which is a fault of the machine and no verdict.
        answer = json.loads(fork.told) if fork.told else {"died": fork.how_it_ended()}
        self._answer(fork.id, answer)

    def _end(self, fork):
        self._selector.unregister(fork.pipe)
        del self._running[fork.id]
        fork.end()

    def _answer(self, id, answer):
        _write(self._answers, json.dumps({"id": id, **answer}).encode() + b"\n")


class Fork:
    """The process of an episode, with a directory of its own, and the processes that it starts."""

    def __init__(self, order, task):
        self.id = order["id"]
        self.told = b""
        self._order = order
        self._task = task

    def start(self, close):
        self._place = tempfile.mkdtemp(prefix="areal-sdk-inspect-")
        self.pipe, told = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(told)
            return
        try:
            os.setsid()
            for one in (0, self.pipe, *close):
                os.close(one)
            os.open(os.devnull, os.O_RDONLY)
            try:
                answer = played(self._order, self._task, self._place)
            except Exception as error:  # noqa: BLE001 - the episode's, and the other side says so
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            _write(told, json.dumps(answer).encode())
        finally:
            os._exit(0)

    def end(self):
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(self._pid, signal.SIGKILL)  # it has no group of its own yet
        _, self._status = os.waitpid(self._pid, 0)
        os.close(self.pipe)
        shutil.rmtree(self._place, ignore_errors=True)

    def how_it_ended(self):
        return f"the process of the episode ended with {os.waitstatus_to_exitcode(self._status)}"


def played(order, task, place):
    """The verdict of the task on one sample, played by the session."""
    from inspect_ai import eval, task_with
    from inspect_ai.model import get_model

    sample = task.dataset[order["index"]]
    if key_of(sample) != order["key"]:
        return {"error": f"sample {order['index']} is another one now: list the tasks again"}
    model = get_model(
        f"areal-sdk/{order['model']}", base_url=order["base_url"], api_key="none", memoize=False
    )
    # The policy never grades itself: its grades would be trained as answers.
    roles = {"grader": "none/none", **order["roles"]}
    task = task_with(task, dataset=[sample], model=model, epochs=1, fail_on_error=True)
    (log,) = eval(
        task,
        model=model,
        model_roles={**(task.model_roles or {}), **roles},
        log_dir=place,
        log_format="json",
        display="none",
        log_realtime=False,
        ctl_server=False,
        retry_on_error=0,
    )
    failed = log.samples[0].error if log.samples and log.samples[0].error else log.error
    if failed is not None or log.status != "success":
        return {"error": failed.message if failed else f"the evaluation has {log.status}"}
    return verdict_of(log.samples[0].scores or {}, order["score"])


def verdict_of(scores, wanted):
    """The value that counts as the reward, None if it was not scored, and all numbers as metrics."""
    values = {}
    for name, score in scores.items():
        if isinstance(score.value, dict):
            values |= {f"{name}/{key}": value for key, value in score.value.items()}
        else:
            values[name] = score.value
    numbers = {name: _number(value) for name, value in values.items()}
    metrics = {name: number for name, number in numbers.items() if number is not None}
    if not scores:
        return {"reward": None, "metrics": metrics}
    name = wanted or (next(iter(values)) if len(values) == 1 else "")
    if name not in values:
        wrong = (
            f"{name!r} is none of the scores"
            if name
            else "which score counts is not said; there are"
        )
        return {"error": f'{wrong} {", ".join(values)}: [tasks.inspect] score = "..."'}
    value = values[name]
    if numbers[name] is None and not (isinstance(value, float) or value is None):
        return {"error": f"the score {name} is {value!r}, which is no number"}
    return {"reward": numbers[name], "metrics": metrics}


_WORDS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def _number(value):
    """The value as Inspect's own metrics count it; None for one that they cannot, or that says `unscored`."""
    if isinstance(value, str):
        if value in _WORDS or value.lower() in _WORDS:
            return _WORDS.get(value, _WORDS.get(value.lower()))
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, (bool, int, float)) or not abs(value) < float("inf"):
        return None
    return float(value)


def _write(fd, raw):
    while raw:
        raw = raw[os.write(fd, raw) :]


if __name__ == "__main__":
    main()
