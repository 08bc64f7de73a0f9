"""The contract between a process that answers calls and a process that makes them.

    class Rewards(Service, Protocol):
        def score(self, reward: int, episode: Bulk) -> Answer[Outcome]: ...

    class Worker(Rewards):                                       # the process that answers
        async def score(self, reward: int, episode: Bulk) -> Outcome: ...

    rewards = Client[Rewards](child)                             # the process that calls
    outcome = await rewards.call(Rewards.score, 0, packed, timeout_s=30)

The annotations say how values travel. Numbers, text and dataclasses travel as JSON, alone or in tuples,
lists and mappings; numpy's numbers become plain ones, and a `float` keeps infinities and NaN. `Bulk` travels
beside the JSON, and is not copied.
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
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    PydanticUserError,
    SerializationInfo,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticSerializationError

from areal_sdk.errors import ContractError
from areal_sdk.process.channel import Request
from areal_sdk.process.frames import JSON, Buffer, view_of


class Service(Protocol):
    """Base of the contracts. A contract lists methods; the class that answers them derives from it."""


_FLOATS = ConfigDict(ser_json_inf_nan="strings")
"""Writes NaN and infinities as text, since JSON has none. A field that takes numbers reads that text."""


def _put_beside(item: Buffer, info: SerializationInfo) -> dict[str, int]:
    assert isinstance(info.context, list), "values are written with their buffers"
    info.context.append(view_of(item))
    return {"bulk": len(info.context) - 1}  # no number and no text, so that it fits no other field


def _taken(placed: object, info: ValidationInfo) -> memoryview:
    assert info.context is not None, "values are read with their buffers"
    match placed:
        case {"bulk": int(place)} if 0 <= place < len(info.context):
            buffer: memoryview = info.context[place]
            return buffer
    raise ValueError(f"expected bulk, one of {len(info.context)} buffers")


if TYPE_CHECKING:
    Bulk: TypeAlias = Buffer
else:
    Bulk = Annotated[Any, PlainSerializer(_put_beside), PlainValidator(_taken)]
"""Bytes or an array, sent from where it lies. It arrives as a writable `memoryview` of its own memory."""

Result = TypeVar("Result")
Part = TypeVar("Part")
Function = TypeVar("Function", bound=Callable[..., Any])
Packed: TypeAlias = tuple[JSON, list[Buffer]]
"""A payload and its buffers."""

Answer = Union[Result, Future[Result], Awaitable[Result]]  # noqa: UP007 - mypy takes no `|` of variables
"""The answer of a method: its result, or a future or a coroutine of the result, which answers once it is done."""


REPORT_AFTER_S = 0.05
"""Seconds over which a process collects what happens, to report it together."""
BEAT_S = 0.25
"""Seconds between two reports of what goes on."""


class Stream(Generic[Part]):
    """An answer in parts. A method returns a new stream; its process sends the parts later, from any thread."""

    def __init__(self) -> None:
        self._begun: tuple[Request, Method] | None = None

    def begin(self, request: Request, method: "Method") -> None:
        """Send the parts as the answer to `request`, a call of `method`."""
        self._begun = request, method

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller takes no more parts."""
        return self._begun is not None and self._begun[0].cancelled

    def send(self, part: Part) -> None:
        request, method = self._answering
        request.emit(*method.answered(part))

    def finish(self, part: Part | None = None) -> None:
        """End the answer, with a last part unless `part` is None."""
        request, method = self._answering
        request.finish(*(() if part is None else method.answered(part)))

    def fail(self, error: Exception) -> None:
        request, _ = self._answering
        request.fail(error)

    @property
    def _answering(self) -> "tuple[Request, Method]":
        assert self._begun is not None, "a method returns its stream before it sends a part"
        return self._begun


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
    _result: TypeAdapter[tuple[Any]]
    """Reads and writes the result as a tuple of one: pydantic applies `_FLOATS` to a tuple, and not to a dataclass."""

    def called(self, *arguments: object) -> Packed:
        """The payload and the buffers of a call. Raises TypeError, which names the method."""
        try:
            written, buffers = _written(self._arguments, arguments)
        except PydanticSerializationError as exc:
            raise TypeError(f"{self.title}: {exc}") from exc
        return orjson.Fragment(written), buffers

    def answered(self, result: object) -> Packed:
        """The payload and the buffers of an answer, or of a part of one. Raises ContractError, which names the method."""
        try:
            written, buffers = _written(self._result, (result,))
        except PydanticSerializationError as exc:
            raise ContractError(f"the answer of {self.title} cannot be sent: {exc}") from exc
        return orjson.Fragment(written[1:-1]), buffers  # without the brackets of the tuple

    def arguments(self, payload: JSON, buffers: Sequence[memoryview]) -> tuple[Any, ...]:
        """The arguments of `called`. Raises ContractError, which names the method."""
        try:
            return self._arguments.validate_python(payload, context=buffers)
        except ValidationError as exc:
            raise ContractError(f"{self.title} was called with {payload!r:.200}: {exc}") from exc

    def result(self, payload: JSON, buffers: Sequence[memoryview]) -> Any:
        """The result of `answered`. Raises ContractError, which names the method."""
        try:
            (result,) = self._result.validate_python((payload,), context=buffers)
        except ValidationError as exc:
            raise ContractError(f"{self.title} was answered with {payload!r:.200}: {exc}") from exc
        return result


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
        answered: Any = tuple[result]  # type: ignore[valid-type]  # as above
        return Method(
            function.__name__,
            title,
            TypeAdapter(arguments, config=_FLOATS),
            TypeAdapter(answered, config=_FLOATS),
        )
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


def _written(adapter: TypeAdapter[Any], value: object) -> tuple[bytes, list[Buffer]]:
    """The JSON of a value, and the bulk data of the value."""
    buffers: list[Buffer] = []
    written = adapter.serializer.to_json(value, context=buffers, fallback=_plain, warnings=False)
    return written, buffers


def _plain(item: Any) -> object:
    """The plain number in a scalar of numpy, or in an array without axes. TypeError for anything else."""
    if getattr(item, "ndim", None) == 0 and hasattr(item, "item"):
        return item.item()
    raise TypeError(f"a {type(item).__name__} cannot travel as JSON")
