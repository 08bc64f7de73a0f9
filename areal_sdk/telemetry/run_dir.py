"""The run directory: everything that a run writes, for people and tools, during the run and after.

config.toml     resolved configuration, without secrets
began.json      when the run began
call.json       for a run that Python code began: the names of the arguments that are objects
origin.json     which weights the run began with: a resume and a KL to them need the same ones
id.json         of a run with a mirror: the id of the run, and who writes to the mirror
plugins.json    every installed plugin with its version, and plugins that the run had before a resume
metrics.jsonl   one line per optimiser step or evaluation. A `resume` line names the step from which a
                run continued; later steps are made again. An `end` line says that the run ended by
                itself, a `failed` line the error that ended it. A `measure` line begins an evaluation
                that belongs to no training run. A `notice` line is what the run told its user
ledger.json     the number of episodes by state: running, buffered, trained, dropped by reason
data.json       of a fine-tuning run: digests of the rows that it began with, and for `dpo` their logprobs then
episodes/       conversations, tokens, masks, rewards, versions
open/           the answers of episodes that no step has trained yet: a resumed run goes on with them
tokens/         what each step made of each token: advantages, logprobs, entropy, flags
checkpoints/    weights, optimiser, and the state to resume from
model/          config, tokenizer and template of the trained model: all its files but the weights
logs/           one file per child process
report.html     the run as one page for a browser
live.json       current state of the run: progress and waits
flight.jsonl    its state every second of the last minutes, in a ring of fixed size: for `why` after whatever end

The directory is open to its user alone, and so is every file but those of weights: whoever opens the
directory to others (`chmod 711`) lets them read the weights, and no text.
"""

import fcntl
import glob
import os
import re
import shlex
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from areal_sdk.errors import ConfigError
from areal_sdk.telemetry import episode_log as episodes
from areal_sdk.telemetry import metrics, token_log
from areal_sdk.telemetry.directories import refuse_address
from areal_sdk.telemetry.episode_index import EpisodeSummary
from areal_sdk.telemetry.episode_log import EpisodeRecord
from areal_sdk.telemetry.files import (
    PRIVATE_DIRECTORY,
    cannot_write,
    private,
    read_if_whole,
    read_json,
    to_json,
    write_atomically,
)
from areal_sdk.telemetry.token_log import StepTokens

REMOVED = "(removed)"

BEST, WAITING = "best", "waiting"
"""Folders in `checkpoints`: the best weights, and weights that looked better, but changed while they were evaluated."""
MEASURED_FILE = "evaluation.json"
"""File beside exported weights with their scores and their step."""

_SECRET = re.compile(
    r"(^|_)(api_?key|admin_?key|secret|password|passwd|token|credentials?)$", re.IGNORECASE
)
_URL_LOGIN = re.compile(r"(?<=://)(?<!abfs://)(?<!abfss://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run's directory, by its parts. Make one with `create` or `open`."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str | None = None, *, stem: str = "run") -> Self:
        """Make `root/name`; without a name `root/<stem>-<date>-<time>`. Never reuses one."""
        if name is not None:
            path = root / name
            try:
                path.mkdir(PRIVATE_DIRECTORY, parents=True)
            except FileExistsError:
                run, way_on = cls(path), ""
                if run.config.is_file():
                    way_on = f", or go on with it: {run.how_to_resume()}"
                raise ConfigError(
                    f"the run directory {path} exists: choose another run.name{way_on}"
                ) from None
            except OSError as exc:
                raise cannot_write(path, exc) from exc
            return cls(path)
        base = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        for attempt in range(1000):
            path = root / (f"{base}-{attempt + 1}" if attempt else base)
            try:
                path.mkdir(PRIVATE_DIRECTORY, parents=True)
            except FileExistsError:
                continue  # another run began in this second
            except OSError as exc:
                raise cannot_write(path, exc) from exc
            return cls(path)
        raise ConfigError(f"1000 runs began in one second in {root}: set run.name")

    @classmethod
    def open(cls, path: Path) -> Self:
        """The run in the directory `path`. ConfigError if there is none."""
        run = cls(path)
        refuse_address(str(path))
        if not run.config.is_file():
            below = next(path.parent.glob(f"*/{glob.escape(path.name)}/config.toml"), None)
            near = [p for p in path.parent.glob("*/config.toml") if cls(p.parent).has_begun()]
            near.sort(key=lambda p: p.stat().st_mtime)
            hint = f"; the newest run beside it: {near[-1].parent}" if near else ""
            if below is not None:
                hint = f"; there is one of this name: {below.parent}"
            raise ConfigError(f"{path} is not a run directory (no config.toml){hint}")
        return run

    def has_begun(self) -> bool:
        """Whether the directory holds more than settings. A run that failed at its start has only these."""
        written = (self.metrics, *self.episodes.glob("*"))
        return any(path.is_file() and path.stat().st_size > 0 for path in written)

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def began(self) -> Path:
        return self.path / "began.json"

    @property
    def call(self) -> Path:
        return self.path / "call.json"

    @property
    def plugins(self) -> Path:
        return self.path / "plugins.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.json"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes"

    @property
    def open_episodes(self) -> Path:
        return self.path / "open"

    @property
    def tokens(self) -> Path:
        return self.path / "tokens"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def origin(self) -> Path:
        """The file that says which weights the run began with."""
        return self.path / "origin.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def live(self) -> Path:
        return self.path / "live.json"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Lock the directory against writers of other processes. The lock ends with this process."""
        with open(self.path / ".lock", "a+", encoding="utf-8", opener=private) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                owner = lock.read().strip()
                raise ConfigError(
                    f"the run in {self.path} is still going on (pid {owner}): "
                    "stop it before resuming it"
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def is_in_use(self) -> bool:
        """Whether a process holds `in_use` now."""
        try:
            with (self.path / ".lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # held for as long as this line
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Store the resolved configuration. Secrets are removed, unset values left out."""
        import tomli_w

        if not self.config.is_file():  # a resume writes it again
            write_atomically(self.began, to_json({"time": time.time()}))
        write_atomically(self.config, tomli_w.dumps(without_secrets(config)).encode())

    def record_call(self, arguments: Mapping[str, str]) -> None:
        """Store which parameters of `areal_sdk.train` got objects, each in the form in which a user would write it."""
        write_atomically(self.call, to_json(arguments, indent=True))

    def record_plugins(self, installed: Mapping[str, str]) -> list[str]:
        """Store the versions with which a run continues, beside those it had. Returns the changes."""
        recorded = self.read_plugins() or {"installed": dict(installed), "earlier": []}
        before: Mapping[str, str] = recorded["installed"]
        changes = [
            f"{name} was {before.get(name, 'not there')}, now it is {installed.get(name, 'gone')}"
            for name in sorted({*before, *installed})
            if before.get(name) != installed.get(name)
        ]
        earlier = list(recorded["earlier"])
        if changes:
            earlier.append({"until": time.time(), "installed": before})
        document = {"installed": dict(installed), "earlier": earlier}
        write_atomically(self.plugins, to_json(document, indent=True))
        return changes

    def write_ledger(self, snapshot: Mapping[str, Any]) -> None:
        write_atomically(self.ledger, to_json(snapshot, indent=True), durable=False)

    def write_live(self, state: Mapping[str, Any]) -> None:
        write_atomically(self.live, to_json(state), durable=False)

    def read_config(self) -> dict[str, Any]:
        import tomllib

        return tomllib.loads(self.config.read_text(encoding="utf-8"))

    def read_began(self) -> float:
        """Unix time at which the run began. If the directory does not say, the time at which its settings were written."""
        return float((read_if_whole(self.began) or {}).get("time") or self.config.stat().st_mtime)

    def read_call(self) -> dict[str, str]:
        """The arguments that `record_call` stored; empty if the settings describe the whole run."""
        return read_json(self.call) or {}

    def how_to_resume(self, *, steps: int | None = None) -> str:
        """The command or Python call that resumes this run, with `steps` if they are given."""
        call = self.read_call()
        if not call:
            name = self._command()
            limit = (
                f" {'--set run.steps=' if name == 'serve' else '--steps '}{steps}" if steps else ""
            )
            command = f"areal-sdk {name} --resume"
            return f"{command} {shlex.quote(str(self.path))}{limit}"
        arguments = [
            call.pop("agent"),
            f"resume={str(self.path)!r}",
            *(f"{name}={value}" for name, value in call.items()),
            *([f"run={{'steps': {steps}}}"] if steps else []),
        ]
        return f"areal_sdk.train({', '.join(arguments)})"

    def _command(self) -> str:
        """The name of the `areal-sdk` command that made this run, such as `train` or `serve`."""
        with suppress(OSError, tomllib.TOMLDecodeError):  # reading the settings reports the error
            settings = tomllib.loads(self.config.read_text(encoding="utf-8"))
            if settings.get("serve", {}).get("learn"):
                return "serve"
            if objective := settings.get("finetune", {}).get("objective"):
                return str(objective).replace("_", "-")
        return "train"

    def read_plugins(self) -> dict[str, Any] | None:
        """The `installed` versions, and the `earlier` ones with which parts of the run were made."""
        return read_if_whole(self.plugins)

    def read_ledger(self) -> dict[str, Any] | None:
        """The last written `Ledger.snapshot()`; None before the first."""
        return read_if_whole(self.ledger)

    def read_live(self) -> dict[str, Any] | None:
        """The latest content of `live.json`; None if there is none."""
        return read_if_whole(self.live)

    def read_metrics(self, *, kind: str | None = None) -> list[dict[str, Any]]:
        """The events in order, or those of one `kind`."""
        return metrics.read_metrics(self.metrics, kind=kind)

    def read_history(self, *, kind: str | None = None) -> list[dict[str, Any]]:
        """The events that count: without those of steps that a resumed run took again."""
        return metrics.read_history(self.metrics, kind=kind)

    def read_steps(self) -> list[dict[str, Any]]:
        """The `step` events by step. A repeated step is there once."""
        return metrics.read_steps(self.metrics)

    def lost_metrics(self) -> str:
        """A sentence that names the steps that are missing in the metrics; empty if none is known to be missing."""
        steps = [event["step"] for event in self.read_history() if event["kind"] == "step"]
        names = (path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*"))
        saved = [int(number) for number in names if number.isdecimal()]
        last, made = max(steps, default=0), max(saved, default=0)
        trained = (self.read_ledger() or {}).get("trained", 0)
        if last >= made and (steps or not trained):
            return ""
        missing = f"steps {last + 1} to {made}" if made > last else "its steps"
        how = "is gone" if not self.metrics.is_file() else f"ends at step {last}"
        return f"{self.metrics.name} {how}: curves and evaluations of {missing} are lost"

    def only_measured(self) -> bool:
        """Whether this is the directory of `areal-sdk eval --record`."""
        return bool(self.read_metrics(kind="measure"))

    def list_episodes(self) -> Iterator[EpisodeSummary]:
        """The episodes, newest first, without those that a resume undid."""
        return episodes.list_episodes(self.episodes)

    def read_tokens(self, step: int) -> StepTokens | None:
        """The record of the tokens of `step`; None if there is none."""
        return token_log.read_tokens(self.tokens, step)

    def num_deleted(self) -> int:
        """The number of the oldest episodes that were deleted (`run.keep_episodes`)."""
        return episodes.num_deleted(self.episodes)

    def find_episode(self, episode_id: str) -> EpisodeRecord:
        """The whole episode. If there is none with that id, ConfigError names the newest ones. A session that a
        caller named `mine` is found by that name too, if only one caller chose it."""
        record = episodes.find_episode(self.episodes, episode_id)
        if record is not None:
            return record
        named = [e for e in self.list_episodes() if e.id.endswith(f"/{episode_id}")]
        if len(named) == 1:
            return episodes.read_episode(self.episodes, named[0])
        newest = [summary.id for summary, _ in zip(self.list_episodes(), range(3), strict=False)]
        hint = f"the newest are {', '.join(newest)}" if newest else "it has none yet"
        if deleted := self.num_deleted():
            hint += f", and the oldest {deleted:,} are deleted (run.keep_episodes)"
        raise ConfigError(f"no episode {episode_id!r} in {self.path}; {hint}")


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` as TOML can hold it, with every value whose name says secret removed.

    >>> without_secrets({"api_key": "sk-1", "max_tokens": 5, "url": "http://me:pw@host/v1"})
    {'api_key': '(removed)', 'max_tokens': 5, 'url': 'http://(removed)@host/v1'}
    """
    return {
        str(key): REMOVED if _SECRET.search(str(key)) and value else _clean(value)
        for key, value in config.items()
        if value is not None
    }


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(item) for item in value if item is not None]
    if isinstance(value, (bool, int, float)):
        return value
    return _URL_LOGIN.sub(f"{REMOVED}@", str(value))


def read_measured(exported: Path) -> dict[str, Any] | None:
    """The scores of the weights in `exported`; None if they were not measured or do not exist."""
    measured: dict[str, Any] | None = read_json(exported / MEASURED_FILE)
    return measured


def scores_of(measured: Mapping[str, Any]) -> str:
    """The scores of exported weights as text.

    >>> scores_of({"step": 4, "success": 0.0, "reward": 0.71})
    'success 0.000, reward 0.710'
    """
    reward = measured.get("reward")
    return f"success {measured['success']:.3f}" + (
        "" if reward is None else f", reward {reward:.3f}"
    )
