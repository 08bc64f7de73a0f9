"""Notes on a session beside its turns: faults, notices for the client, and metadata of requests."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from areal_sdk.gateway.errors import ApiError

_MAX_NOTICES = 100
_LONGEST_NOTICE = 1000
_MAX_METADATA = 64
_MAX_METADATA_BYTES = 16 * 1024
"""Largest size of one metadata field in bytes."""


class Notes:
    """The notes on one session. The lists are read only: the methods add to them."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._faults_of: dict[bytes, list[tuple[int, str]]] = {}
        """The attempts at each request that met a fault, by the request's body: number of the attempt and fault."""
        self._notices: list[str] = []
        self._metadata: dict[str, Any] = {}

    @property
    def faults(self) -> Sequence[str]:
        """Infrastructure faults. They, not what the agent raised, decide the episode's error."""
        return self._faults

    @property
    def notices(self) -> Sequence[str]:
        """Notices for the client: overridden parameters, malformed tool calls left as text."""
        return self._notices

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Request fields without effect here, such as `user`: the latest value of each."""
        return self._metadata

    def fault(self, what: str) -> None:
        """Note an infrastructure fault."""
        self._faults.append(what)

    @contextmanager
    def noting_faults(self) -> Iterator[None]:
        """Note the infrastructure fault of an error that is on its way to the client."""
        try:
            yield
        except ApiError as exc:
            if exc.fault is not None:
                self.fault(exc.fault)
            raise

    def may_forgive(self, fault: str, digest: bytes, *, num_retries: int) -> None:
        """Have `forgive` forget this one of `faults` when a later attempt at the same request is answered.

        Do not call this for a fault in the midst of a stream, since the client has read half of the answer.
        """
        self._faults_of.setdefault(digest, []).append((num_retries, fault))

    def forgive(self, digest: bytes, *, num_retries: int) -> None:
        """Forget the faults of earlier attempts at a request: the SDK asked again, and nobody's code saw them.

        Each earlier attempt gives up one fault: further faults under the same digest belong to other requests with an
        identical body.
        """
        met = self._faults_of.get(digest, [])
        for attempt, fault in dict(met).items():
            if attempt < num_retries:
                met.remove((attempt, fault))
                self._faults.remove(fault)

    def notice(self, text: str) -> bool:
        """Keep a notice, or its beginning. Returns False if the session has it already, or has enough notices."""
        text = text[:_LONGEST_NOTICE]
        if len(self._notices) >= _MAX_NOTICES or text in self._notices:
            return False
        self._notices.append(text)
        return True

    def keep_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Keep the metadata that a request carries, as far as they are small."""
        for name, value in metadata.items():
            is_known = name in self._metadata
            if is_known and self._metadata[name] == value:
                continue
            if (is_known or len(self._metadata) < _MAX_METADATA) and (
                len(orjson.dumps(value)) <= _MAX_METADATA_BYTES
            ):
                self._metadata[name] = value
