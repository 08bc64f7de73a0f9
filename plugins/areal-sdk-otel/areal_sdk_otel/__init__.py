"""OpenTelemetry: episodes as traces over OTLP, and a run's numbers for Prometheus."""

from areal_sdk import hookimpl


@hookimpl
def register_observers(register):  # type: ignore[no-untyped-def]
    register("otel", "areal_sdk_otel.observer:Otel")
