"""The contract between a process that answers calls and a process that makes them.

    class Rewards(Service, Protocol):
        def score(self, reward: int, episode: Bulk) -> Answer[Outcome]: ...

    class Worker(Rewards):                                       # the process that answers
        async def score(self, reward: int, episode: Bulk) -> Outcome: ...

    rewards = Client[Rewards](child)                             # the process that calls
    outcome = await rewards.call(Rewards.score, 0, packed, timeout_s=30)

The annotations say how values travel. Numbers, text and dataclasses travel as JSON, alone or in tuples,
lists and mappings; `Bulk` travels beside the JSON, and is not copied. JSON has no NaN: annotate a number
that may be NaN with `Number`.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson
from pydantic import (
    BeforeValidator,
    PlainValidator,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from areal_sdk.errors import ContractError
from areal_sdk.process.channel import Request
from areal_sdk.process.frames import JSON, Buffer


class Service(Protocol):
    """Base of the contracts. A contract lists methods; the class that answers them derives from it."""


def _taken(place: int, info: ValidationInfo) -> memoryview:
    assert info.context is not None, "values are read with their buffers"
    buffer: memoryview = info.context[place]
    return buffer


if TYPE_CHECKING:
    Bulk: TypeAlias = Buffer
else:
    Bulk = Annotated[Any, PlainValidator(_taken)]
"""Bytes or an array, sent from where it lies. It arrives as a writable `memoryview` of its own memory."""

Number = Annotated[float, BeforeValidator(lambda value: float("nan") if value is None else value)]
"""A number that may be NaN."""

Result = TypeVar("Result")
Part = TypeVar("Part")
Function = TypeVar("Function", bound=Callable[..., Any])


Answer = Union[Result, Future[Result], Awaitable[Result]]  # noqa: UP007 - mypy takes no `|` of variables
"""The answer of a method: its result, or a future or a coroutine of the result, which answers once it is done."""


class Stream(Generic[Part]):
    """An answer in parts. A method returns a new stream; its process sends the parts later, from any thread."""

    def __init__(self) -> None:
        self._request: Request | None = None

    def begin(self, request: Request) -> None:
        """Send the parts as the answer to `request`."""
        self._request = request

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller takes no more parts."""
        return self._request is not None and self._request.cancelled

    def send(self, part: Part) -> None:
        self._begun.emit(*packed(part))

    def finish(self, part: Part | None = None) -> None:
        """End the answer, with a last part unless `part` is None."""
        self._begun.finish(*packed(part))

    def fail(self, error: Exception) -> None:
        self._begun.fail(error)

    @property
    def _begun(self) -> Request:
        assert self._request is not None, "a method returns its stream before it sends a part"
        return self._request


def at_once(method: Function) -> Function:
    """Mark a method of a service whose caller is answered as soon as the call has arrived.

    So the caller knows that the process takes calls, also while code blocks its event loop. An error of
    such a method ends the process: nobody else would hear of it.
    """
    method.is_answered_at_once = True  # type: ignore[attr-defined]
    return method


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a contract, and how its arguments and its result travel."""

    name: str
    title: str
    """The contract, the method and its parameters: `Rewards.score(reward, episode)`."""
    _arguments: TypeAdapter[tuple[Any, ...]]
    _result: TypeAdapter[Any]

    def called(self, *arguments: object) -> tuple[JSON, list[Buffer]]:
        """The payload and the buffers of a call. Raises TypeError, which names the method."""
        try:
            return packed(arguments)
        except TypeError as exc:
            raise TypeError(f"{self.title}: {exc}") from exc

    def arguments(self, payload: JSON, buffers: Sequence[memoryview]) -> tuple[Any, ...]:
        """The arguments that `packed` has written. Raises ContractError, which names the method."""
        return self._read(self._arguments, payload, buffers, "was called with")  # type: ignore[no-any-return]

    def result(self, payload: JSON, buffers: Sequence[memoryview]) -> Any:
        """The result that `packed` has written. Raises ContractError, which names the method."""
        return self._read(self._result, payload, buffers, "was answered with")

    def _read(
        self, adapter: TypeAdapter[Any], payload: JSON, buffers: Sequence[memoryview], what: str
    ) -> Any:
        try:
            return adapter.validate_python(payload, context=buffers)
        except (ValidationError, IndexError) as exc:
            raise ContractError(f"{self.title} {what} {payload!r:.200}: {exc}") from exc


@cache
def method_of(function: Callable[..., Any]) -> Method:
    """The method that a function of a contract declares."""
    hints = get_type_hints(function, include_extras=True)
    answer = hints.pop("return")
    title = f"{function.__qualname__}({', '.join(hints)})"
    of_answer = [kind for kind in get_args(answer) if get_origin(kind) is Awaitable]
    if not of_answer and get_origin(answer) is not Stream:
        raise TypeError(f"{title} returns {answer}: expected an Answer or a Stream")
    (result,) = get_args(of_answer[0] if of_answer else answer)
    try:
        arguments: Any = tuple[*hints.values()]  # type: ignore[misc]  # known when it runs
        return Method(function.__name__, title, TypeAdapter(arguments), TypeAdapter(result))
    except PydanticUserError as exc:
        raise TypeError(f"{title} has an annotation that cannot travel: {exc}") from exc


def methods_of(service: type[Service]) -> dict[str, Method]:
    """The methods of all contracts that a class answers."""
    contracts = [kind for kind in service.__mro__ if Protocol in kind.__bases__]
    return {
        name: method_of(function)
        for contract in reversed(contracts)
        for name, function in vars(contract).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


def packed(value: object) -> tuple[JSON, list[Buffer]]:
    """The JSON of a value, and its bulk data, to be sent as a payload and its buffers."""
    buffers: list[Buffer] = []

    def beside(item: Any) -> int:
        if not isinstance(item, bytes | bytearray | memoryview) and not hasattr(item, "nbytes"):
            raise TypeError(f"a {type(item).__name__} cannot travel as JSON")
        buffers.append(item)
        return len(buffers) - 1

    return orjson.Fragment(orjson.dumps(value, beside, orjson.OPT_NON_STR_KEYS)), buffers
