"""`areal-sdk serve --upstream`: another provider answers, and the text of its answers is kept."""

from areal_sdk import hookimpl


@hookimpl
def register_backends(register):  # type: ignore[no-untyped-def]
    register("upstream", "areal_sdk_upstream.backend:UpstreamBackend")
