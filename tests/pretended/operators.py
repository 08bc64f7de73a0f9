"""The operators of the device: each runs the CPU's kernel over the same memory, and is counted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tests.pretended.counting import Kind, note

NAME = "pretended"
KEY = "PrivateUse1"
"""What torch calls the place for such a device."""
HOST = torch.device("cpu")

READING = frozenset(
    f"aten::{name}"
    for name in (
        *("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
        *("equal", "bincount", "repeat_interleave"),
    )
)
"""Operators for which CUDA reads values: the shape of their result depends on them."""
INDEXING = ("aten::index", "aten::_index_put_impl_")
"""Operators that take indices from the host too. What `index` reads and copies for its indices, torch asks for before
it runs the kernel."""
SILENT = (
    *("aten::empty", "aten::_unsafe_view", "aten::resize_", "aten::set_", "aten::is_set_to"),
    "aten::record_stream",
)
"""Operators that launch nothing, as views do."""
FUSED = ("aten::scaled_dot_product_attention", "aten::rms_norm")
"""Operators that torch takes apart on devices without a kernel for them, and that CUDA has one for. These kernels have
no backward pass."""
OF_CUDA = ("aten::_foreach_",)
"""Beginnings of the operators that torch does tensor by tensor on devices without kernels for them."""


def on_host(tensor: Tensor) -> Tensor:
    """The tensor of the host over the memory of a tensor of the device."""
    host: Tensor = torch.ops.pretended.on_host(tensor)
    return host


def on_device(host: Tensor) -> Tensor:
    """The tensor of the device over the memory of a tensor of the host."""
    tensor: Tensor = torch.ops.pretended.on_device(host)
    return tensor


def is_here(tensor: Tensor) -> bool:
    return tensor.device.type == NAME


def size_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# one operator


@dataclass(frozen=True, slots=True)
class Traits:
    """What the schema of an operator says."""

    name: str
    changes: bool
    """Whether it writes into its arguments."""
    given_back: tuple[tuple[int, str] | None, ...]
    """Of each result: the argument that it is, by number and name; None for a new tensor."""
    launches: bool
    takes_numbers: bool
    """Whether a number may be given in place of a tensor."""
    tensors: frozenset[int]
    """Which arguments are tensors."""


@cache
def traits_of(operator: OpOverload) -> Traits:
    schema = operator._schema
    given_back: list[tuple[int, str] | None] = []
    has_new = not schema.returns
    for result in schema.returns:
        alias = result.alias_info
        has_new |= alias is None
        given_back.append(None)
        if alias is not None and alias.is_write:
            has_new = True
            given_back[-1] = next(
                (number, argument.name)
                for number, argument in enumerate(schema.arguments)
                if argument.alias_info is not None
                and argument.alias_info.before_set & alias.before_set
            )
    return Traits(
        schema.name,
        schema.is_mutable,
        tuple(given_back),
        launches=has_new and not schema.name.startswith(SILENT),
        takes_numbers=torch._C._should_allow_numbers_as_tensors(schema.name.removeprefix("aten::")),
        tensors=frozenset(
            number
            for number, argument in enumerate(schema.arguments)
            if isinstance(argument.type, torch.TensorType)
        ),
    )


@dataclass(slots=True)
class Arguments:
    """The arguments of one call as the CPU's kernel takes them."""

    operator: str
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Tensors of the device, each with its tensor of the host."""
    strange: list[Tensor] = field(default_factory=list)
    """Tensors of the host that are more than a number."""
    names_device: bool = False

    def hosted(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._hosted_tensor(value)
        if isinstance(value, list | tuple):
            return [self.hosted(item) for item in value]
        if isinstance(value, torch.device) and value.type == NAME:
            self.names_device = True
            return HOST
        return value

    def _hosted_tensor(self, tensor: Tensor) -> Tensor:
        if is_here(tensor):
            host = on_host(tensor)
            self.pairs.append((tensor, host))
            return host
        if tensor.dim():
            self.strange.append(tensor)
        return tensor

    def check_devices(self) -> None:
        """Refuse tensors of two devices, as CUDA does. Indices may come from the host: they are copied."""
        if not (self.strange and (self.pairs or self.names_device)):
            return
        if self.operator in INDEXING:
            if self.operator != "aten::index":
                note(Kind.UPLOAD, self.operator, sum(map(size_of, self.strange)))
            return
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{NAME}:0 and {self.strange[0].device}! (in {self.operator})"
        )


def run(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Any operator: the CPU's kernel over the same memory."""
    traits = traits_of(operator)
    arguments = Arguments(traits.name)
    hosted = [arguments.hosted(value) for value in args]
    if not traits.takes_numbers:
        hosted = [_as_tensor(v) if i in traits.tensors else v for i, v in enumerate(hosted)]
    hosted_by_name = {name: arguments.hosted(value) for name, value in kwargs.items()}
    arguments.check_devices()
    if _reads(traits.name, args, kwargs):
        note(Kind.READ, traits.name)
    if traits.launches:
        note(Kind.LAUNCH, traits.name)
    results = operator(*hosted, **hosted_by_name)
    if traits.changes:
        for tensor, host in arguments.pairs:
            if torch.ops.pretended.differs(tensor, host):
                torch.ops.pretended.become(tensor, host)
    if not traits.given_back:
        return None
    if len(traits.given_back) == 1:
        return _returned(traits.given_back[0], results, args, kwargs)
    pairs = zip(traits.given_back, results, strict=True)
    return tuple(_returned(place, result, args, kwargs) for place, result in pairs)


def _as_tensor(value: Any) -> Any:
    """A tensor of the number `value`, as it was before torch made it a number for Python."""
    return torch.tensor(value) if isinstance(value, int | float) else value


def _returned(
    place: tuple[int, str] | None, result: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    if place is not None:
        number, name = place
        return kwargs[name] if name in kwargs else args[number]
    if isinstance(result, list | tuple):
        return [on_device(item) for item in result]
    return on_device(result) if isinstance(result, Tensor) else result


def _reads(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "aten::_index_put_impl_":
        has_mask = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        return has_mask and (
            args[2].dim() > 0 or is_here(args[2])
        )  # a number of the host is filled in
    return name in READING


# operators that are not the CPU's


def item(tensor: Tensor) -> Any:
    note(Kind.READ, "item", size_of(tensor))
    return on_host(tensor).item()


def copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """A copy to the device, from it, or on it."""
    here, there = is_here(source), is_here(target)
    a, b = on_host(source) if here else source, on_host(target) if there else target
    if here and there:
        note(Kind.LAUNCH, "aten::copy_")
    elif here:
        note(Kind.READ, "copy", size_of(target))  # pageable memory: `non_blocking` waits too
    elif source.dim():
        note(Kind.SENT if non_blocking else Kind.UPLOAD, "copy", size_of(target))
    else:
        note(Kind.SENT, "number", size_of(target))
    b.copy_(a)
    return target


def copy_and_resize(source: Tensor, target: Tensor) -> Tensor:
    return copy(source, target.resize_(source.shape))


def fused(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
        raise NotImplementedError(f"{operator} has no backward pass on the pretended device")
    return run(operator, *args, **kwargs)


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    _check_half(q)
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, lse = run(forward, q, k, v, dropout_p, is_causal, scale=scale)
    none = torch.empty((), dtype=torch.int64, device=q.device)
    return out, lse, None, None, q.shape[2], k.shape[2], none, none, None


def flash_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> Any:
    _check_half(q)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return run(backward, grad, q, k, v, out, logsumexp, dropout_p, is_causal, scale=scale)


def _check_half(q: Tensor) -> None:
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise RuntimeError(f"flash attention computes in bfloat16 and float16, not in {q.dtype}")


def product_in(operator: OpOverload, a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Any:
    """A product of half precision whose result is not rounded to it."""
    note(Kind.LAUNCH, operator._schema.name)
    return on_device(operator(on_host(a).to(out_dtype), on_host(b).to(out_dtype)))


# registration

_libraries: list[Any] = []
"""Registrations end with their library."""


def new_library(namespace: str) -> Any:
    """A set of registrations that lasts as long as the process. `_` is for all operators."""
    untyped: Any = torch.library
    _libraries.append(untyped.Library(namespace, "IMPL"))
    return _libraries[-1]


def register() -> None:
    new_library("_").fallback(run, KEY)
    own = new_library("aten")
    aten = torch.ops.aten
    special: dict[str, Callable[..., Any]] = {
        "_local_scalar_dense": item,
        "_copy_from": copy,
        "_copy_from_and_resize": copy_and_resize,
        "_scaled_dot_product_flash_attention": flash_attention,
        "_scaled_dot_product_flash_attention_backward": flash_attention_backward,
        "bmm.dtype": partial(product_in, aten.bmm.default),
        "mm.dtype": partial(product_in, aten.mm.default),
    }
    for name, function in special.items():
        own.impl(name, function, KEY)
    for operator in _operators():
        name = operator._schema.name
        if name in FUSED:
            own.impl(operator, partial(fused, operator), KEY)
        elif name.startswith(OF_CUDA) or _is_common_view(operator):
            own.impl(operator, partial(run, operator), KEY)


def _operators() -> Iterable[OpOverload]:
    """All operators of torch's own."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        if namespace == "aten" and hasattr(torch.ops.aten, base):
            yield getattr(getattr(torch.ops.aten, base), overload or "default")


def _is_common_view(operator: OpOverload) -> bool:
    """Whether torch makes the view itself, for all devices alike. It would say that the view is where its memory is."""
    aliases = [result.alias_info for result in operator._schema.returns]
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    name = operator._schema.name
    return name == "aten::_unsafe_view" or (
        is_view
        and name != "aten::detach"  # in device.cpp
        and operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeExplicitAutograd)
    )
