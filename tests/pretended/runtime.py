"""`torch.pretended`: of `torch.cuda` what torch itself asks for."""

from types import ModuleType

import torch

from tests.pretended.counting import Kind, note
from tests.pretended.operators import NAME


def make_module() -> ModuleType:
    module = ModuleType(f"torch.{NAME}")

    class Stream:
        """The one stream. Nothing is asynchronous, so it has nothing to wait for."""

        def __init__(self, *_: object, **__: object) -> None: ...
        def wait_event(self, event: object) -> None: ...
        def wait_stream(self, stream: object) -> None: ...
        def record_event(self, event: object = None) -> object:
            return event or Event()

        def synchronize(self) -> None:
            note(Kind.READ, "synchronize")

        def __enter__(self) -> "Stream":
            return self

        def __exit__(self, *_: object) -> None: ...

    class Event:
        def __init__(self, *_: object, **__: object) -> None: ...
        def record(self, stream: object = None) -> None: ...
        def wait(self, stream: object = None) -> None: ...
        def synchronize(self) -> None:
            note(Kind.READ, "synchronize")

    functions: dict[str, object] = {
        "Stream": Stream,
        "Event": Event,
        "stream": lambda stream: stream,
        "current_stream": lambda device=None: Stream(),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: note(Kind.READ, "synchronize"),
        "manual_seed_all": lambda seed: None,  # random numbers are the host's
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module
