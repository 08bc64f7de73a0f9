"""A number of `Sampling` is declared once: clients, schemas and engines take it from there."""

from typing import Any

import orjson
import pytest

from areal_sdk.backends.local.protocol import ModelCalls
from areal_sdk.engine import SAMPLING_BOUNDS, GenerateRequest, Sampling
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.openapi import openapi_document
from areal_sdk.gateway.wire.fields import Fields, parse_sampling
from areal_sdk.process.frames import view_of
from areal_sdk.process.services.contract import method_of
from areal_sdk_sglang.wire import generate_body

NAMES = pytest.mark.parametrize("name", SAMPLING_BOUNDS)


def between(name: str) -> float:
    """A value that changes something."""
    least, most = SAMPLING_BOUNDS[name]
    return least + 0.75 * (most - least)


def changed(name: str) -> Sampling:
    given: dict[str, Any] = {name: between(name)}
    return Sampling(**given)


@NAMES
def test_clients_may_set_it_within_its_bounds(name: str) -> None:
    assert parse_sampling(Fields({name: between(name)})) == {name: between(name)}
    for bad in (SAMPLING_BOUNDS[name][0] - 0.5, SAMPLING_BOUNDS[name][1] + 0.5, "1"):
        with pytest.raises(ApiError, match=name):
            parse_sampling(Fields({name: bad}))


@NAMES
def test_the_published_schemas_say_so(name: str) -> None:
    schemas = openapi_document()["components"]["schemas"]
    least, most = SAMPLING_BOUNDS[name]
    found = schemas["ChatRequest"]["properties"][name]
    assert (least, most) == (found["minimum"], found["maximum"])


@NAMES
def test_every_engine_gets_it(name: str) -> None:
    request = GenerateRequest((1, 2), 4, changed(name))
    call = method_of(ModelCalls.generate)
    payload, buffers = call.called(request, True)
    sent, _ = call.arguments(orjson.loads(orjson.dumps(payload)), [view_of(b) for b in buffers])
    assert sent == request
    body = generate_body(request, request_id="r")
    assert body["sampling_params"][name] == between(name)


@NAMES
def test_a_token_drawn_with_it_is_trained_only_if_its_logprob_is_the_policys(name: str) -> None:
    assert (changed(name).exclusion is None) == (name == "temperature")
