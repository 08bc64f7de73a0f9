"""The errors that the SDK raises, and the boundary that attributes failures of user code.

The tree is whole. A name with a file in brackets stands in that file, because one package raises and catches it.

* ArealError: the base of every exception of the SDK
  - ConfigError (also ValueError): the configuration cannot be run; the message names the cure
    + MissingExtraError: the command needs a package of an optional extra
    + NoSplitError [builtin/rows.py]: a source with several splits lacks the one that is asked for
  - PluginError: a plugin failed to load, or two plugins claim one name
  - EngineError: an inference engine could not answer a request
    + ContextOverflowError: the prompt does not fit the model's context; an outcome, not a fault
    + UnsupportedSchemaError: the engine cannot enforce the request's JSON schema; the request's fault
    + StaleWeightsError: an engine serves a version that the trainer did not publish
    + ServerFailedError [backends/remote/client.py]: another server may answer the same request
    + RequestRefusedError [backends/remote/client.py]: any other server would refuse the request too
    + _NoPlaceError [backends/remote/starting/placement.py]
  - MalformedCallError (also ValueError): text that looks like a tool call is none; the text stays content
  - ProcessError: a child process could not start, or failed a call
    + ChildDiedError: the child exited, was killed, or its connection broke
    + CallTimeoutError: the child did not answer before the call's deadline
    + RemoteError: code in the child raised
    + MemoryShortError: the child ran out of memory; the message names the settings to lower
    + ContractError (also ValueError): a call of a process, or its answer, does not fit the contract
    + _RefusedError [process/network/listen.py]
  - WaitTimeoutError: a named wait reached its deadline
  - StorageError: the run directory cannot be written; the run must stop
  - LedgerError: the ledger does not balance; the run must stop
  - RolloutError: no episode can be completed; the run must stop
  - DivergedError: the gradients are not finite any more; the run must stop
  - EpisodeError: one episode failed; recorded on the episode, never fatal to the run
    + AgentError, RewardError, EnvError: code of the agent, the reward or the environment failed
    + InfrastructureError: the engine, the network or a worker failed; the episode may be tried again
      - NodeLostError [rollout/nodes/link.py]: the node of an episode is gone
    + DeadlineError: a wall-clock limit ended the episode
  - ApiError [routes/errors.py]: an error in the form that the client's SDK knows
  - SessionClosedError [gateway/errors.py]: a turn came after the end of its episode
  - TemplateRefusalError [gateway/errors.py]: the model's chat template does not accept this conversation
  - TooManyTokensError [gateway/errors.py]: a text has more tokens than its caller can use
  - CheckpointError: a checkpoint could not be written or read
    + DamagedError: the files of a checkpoint are not those that were written
  - PushError [loop/export/hub.py]: an exported model was not uploaded
  - MeasureError [loop/export/measure.py]: the exported files could not be measured
  - ConformanceError [testing/conformance.py]: a plugin breaks a contract

Signals, which the SDK catches and nobody sees:

  - ChannelClosedError [process/channel.py]: the main process is gone, or asked this one to leave
  - FrameError [process/frames.py]: the bytes that arrived are not a frame
  - DeadlinePassedError, CancelledByItselfError [rollout/agents/deadline.py]: why user code ended
  - RanksChange [loop/services/elastic.py]: the run goes on from its checkpoint with another number of ranks
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self

from areal_sdk.errors.blame import place_of, trace_of
from areal_sdk.types import ErrorKind


class ArealError(Exception):
    """Base of every deliberate SDK error."""


class ConfigError(ArealError, ValueError):
    """The user's configuration cannot be run."""


def no_such_file(path: Path, what: str = "file") -> ConfigError:
    """The error for a missing file. It names `path` as the user wrote it, and for a relative path the directory."""
    text = f"no such {what}: {path}"
    if not path.is_absolute():
        text += (
            f" in {Path.cwd()} (a relative path begins at the current directory, also one in a config "
            "file)"
        )
    return ConfigError(text)


class MissingExtraError(ConfigError):
    """A package of an optional extra is not installed."""

    def __init__(self, package: str, *, extra: str, needed_for: str) -> None:
        super().__init__(
            f'{needed_for} needs {package}, which is not installed: pip install "areal-sdk[{extra}]"'
        )


class PluginError(ArealError):
    """A plugin failed to load, or two plugins claim one name."""


class EngineError(ArealError):
    """An inference engine call failed."""


class ContextOverflowError(EngineError):
    """The prompt leaves no room in the model's context."""

    def __init__(self, *, prompt_tokens: int, max_context: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the model's context holds {max_context}: "
            "shorten the conversation or choose a model with a longer context"
        )
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context


class UnsupportedSchemaError(EngineError):
    """The engine cannot constrain its output to this JSON schema: it is invalid or unsupported."""


class StaleWeightsError(EngineError):
    """An engine serves weights that the trainer did not publish."""


class MalformedCallError(ArealError, ValueError):
    """Text between the tags of a tool call is not a call. The text stays in the message."""


class ProcessError(ArealError):
    """A child process could not start, or did not do what it was asked."""


class ChildDiedError(ProcessError):
    """The child exited, was killed, or its connection broke, before it answered."""


class CallTimeoutError(ProcessError):
    """The child did not answer before the call's deadline."""


class MemoryShortError(ProcessError):
    """A child ran out of memory. The message names the settings to lower."""


class ContractError(ProcessError, ValueError):
    """A call of a process, or its answer, does not fit the contract of the process."""


class RemoteError(ProcessError):
    """Code in a child raised; the child itself is still well."""

    def __init__(
        self, where: str, *, kind: str, message: str, place: str = "", trace: str = ""
    ) -> None:
        super().__init__(f"{where}: {kind}: {message}")
        self.kind = kind
        """Class name of the exception."""
        self.message = message
        self.place = place
        """`file.py:line` of the user's code that raised; empty if other code raised."""
        self.trace = trace


def cause_of(error: BaseException) -> BaseException:
    """The first `ArealError` in a group, else its first error. Tasks that end together raise a group."""
    leaves = list(_leaves(error))
    return next((each for each in leaves if isinstance(each, ArealError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


@contextmanager
def raised_here(kind: type[ConfigError] | type[ProcessError]) -> Iterator[None]:
    """Raise the error of a child as if this process had raised it."""
    try:
        yield
    except RemoteError as exc:
        if exc.kind == kind.__name__:
            raise kind(exc.message) from exc
        raise


class WaitTimeoutError(ArealError):
    """A named wait reached its deadline."""


class CheckpointError(ArealError):
    """A checkpoint could not be written or read. Earlier checkpoints are unchanged."""


class DamagedError(CheckpointError):
    """The files of a checkpoint are not those that were written."""


class StorageError(ArealError):
    """A run cannot write to its directory: the disk is full, or the run lacks the permission."""


class LedgerError(ArealError):
    """Episodes were lost or counted twice."""


class RolloutError(ArealError):
    """Too many episodes in a row could not be trained; the run ends before it consumes all tasks."""


class DivergedError(ArealError):
    """Too many steps in a row had a gradient that is not finite."""


class EpisodeError(ArealError):
    """One episode failed. Recorded on the episode; the run goes on."""

    kind: ClassVar[ErrorKind] = ErrorKind.AGENT
    trace: str = ""
    """The traceback of the exception that user code raised."""

    @staticmethod
    def infrastructure(message: str) -> "InfrastructureError":
        """The error to raise where a server or a machine failed under the episode.

        Neither agent nor model is to blame: the episode is tried again, and never counts as a zero.
        """
        return InfrastructureError(message)

    @classmethod
    def at(cls, place: str, message: str, *, trace: str) -> Self:
        """An error from an exception of user code, with the line that raised it."""
        error = cls(f"{message} ({place})" if place else message)
        error.trace = trace
        return error


class AgentError(EpisodeError):
    """The user's agent raised."""


class RewardError(EpisodeError):
    """A reward function raised, hung, or gave no verdict."""

    kind = ErrorKind.REWARD


class EnvError(EpisodeError):
    """An environment raised."""

    kind = ErrorKind.ENVIRONMENT


class InfrastructureError(EpisodeError):
    """The engine, the network or a worker failed under the episode."""

    kind = ErrorKind.INFRASTRUCTURE


class DeadlineError(EpisodeError):
    """A wall-clock deadline passed."""

    kind = ErrorKind.TIMEOUT


def require_package(package: str, *, extra: str, needed_for: str) -> None:
    """Raise MissingExtraError unless `package` is installed. Imports nothing."""
    if find_spec(package) is None:
        raise MissingExtraError(package, extra=extra, needed_for=needed_for)


@asynccontextmanager
async def boundary(error: type[EpisodeError], what: str) -> AsyncIterator[None]:
    """Turn any exception of user code into an `EpisodeError` of the right kind.

    Engine and process faults that pass through user code are infrastructure errors. `CancelledError` is a `BaseException`, so cancellation is never swallowed here.
    """
    try:
        yield
    except EpisodeError:
        raise
    except (EngineError, ProcessError) as exc:
        raise InfrastructureError(f"{what}: {exc}") from exc
    except Exception as exc:
        message = f"{what}: {type(exc).__name__}: {exc}"
        raise error.at(place_of(exc), message, trace=trace_of(exc)) from exc
