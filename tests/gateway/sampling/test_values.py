"""Numbers that a client sends: an engine can compute with what reaches it, everything else is a 400."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest

from areal_sdk.backends.local.requests import check
from areal_sdk.engine import GenerateRequest
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.gateway.sessions.session import Session
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import HI, post

RESPECT = SamplingPolicy(mode="respect")
ENDPOINTS: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "policy", "messages": HI, "max_tokens": 2},
    "completions": {"model": "policy", "prompt": "Hi", "max_tokens": 2},
    "responses": {"model": "policy", "input": "Hi", "max_output_tokens": 2},
    "messages": {"model": "policy", "messages": HI, "max_tokens": 2},
}
FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "seed", "n", "best_of", "logprobs", "top_logprobs"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens"),
)
NUMBERS = (
    *("0", "-0.0", "1e-30", "5e-324", "1e-7", "0.3", "1", "1.0", "2", "20", "-1", "-1e-30"),
    *("2.5", "100", "1e10", "1e30", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "-9223372036854775809", "1e308", "1e400", "9" * 400, "NaN"),
    *("Infinity", "true", '"1"', "[]", "{}"),
)
BIASES = (
    *('{"ID": 5}', '{"50256": -100}', '{"-1": 5}', '{"1_0": 5}', '{" 5": 5}', '{"05": 5}'),
    *('{"+5": 5}', '{"\u0665": 5}', '{"5.0": 5}', '{"": 5}', '{"5": "5"}', '{"5": true}'),
    *('{"5": 1e-320}', '{"5": 101}', '{"5": NaN}', '{"5": null}', '{"99999999999999999999": 0}'),
)


def as_sglang_checks(request: GenerateRequest) -> None:
    """SGLang's own bounds, and those of the 32-bit tensors that it keeps them in."""
    sampling = request.sampling
    assert sampling.temperature == 0 or sampling.temperature >= 1e-6
    assert 0 < sampling.top_p <= 1
    assert 0 <= sampling.min_p <= 1
    assert sampling.top_k < 2**31
    assert abs(sampling.frequency_penalty) <= 2
    assert abs(sampling.presence_penalty) <= 2
    assert 0 < sampling.repetition_penalty <= 2


async def sent(gateway: Gateway, session: Session, path: str, raw: bytes) -> tuple[int, Any]:
    url = f"{session.base_url(gateway.base_url)}/{path}"
    async with aiohttp.ClientSession() as http, http.post(url, data=raw) as reply:
        return reply.status, orjson.loads(await reply.read())


def with_field(body: Mapping[str, Any], name: str, value: str) -> bytes:
    rest = {key: given for key, given in body.items() if key != name}
    return orjson.dumps(rest)[:-1] + f',"{name}":{value}}}'.encode()


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_no_number_is_a_fault_of_the_engine(start_gateway: StartGateway, path: str) -> None:
    gateway, engine = await start_gateway(sampling=RESPECT)
    session = gateway.sessions.open("e")
    cases = [(name, value) for name in FIELDS for value in NUMBERS]
    cases += [("logit_bias", value) for value in BIASES]
    for name, value in cases:
        raw = with_field(ENDPOINTS[path], name, value.replace("ID", str(engine.info.vocab_size)))
        before = engine.num_requests
        status, answer = await sent(gateway, session, path, raw)
        assert status in (200, 400), (name, value, answer)
        if status == 400:
            assert answer["error"].get("param", name) in (name, None), (name, value, answer)
            assert engine.num_requests == before, (name, value)
        else:
            check(engine.requests[-1], engine.info, deterministic=False)
            as_sglang_checks(engine.requests[-1])
    assert session.faults == []


@pytest.mark.parametrize("bias", BIASES[:-1])
async def test_a_bias_for_no_token_of_the_model_names_the_field(
    start_gateway: StartGateway, bias: str
) -> None:
    gateway, engine = await start_gateway(sampling=RESPECT)
    assert engine.info.vocab_size < 50256
    bias = bias.replace("ID", str(engine.info.vocab_size))
    raw = with_field(ENDPOINTS["chat/completions"], "logit_bias", bias)
    status, answer = await sent(gateway, gateway.sessions.open("e"), "chat/completions", raw)
    if bias == '{"5": 1e-320}':
        assert status == 200
        return
    assert status == 400
    assert "NaN" in bias or answer["error"]["param"] == "logit_bias"


@pytest.mark.parametrize(
    ("asked", "sampled"),
    [
        ({"temperature": 1e-30}, {"temperature": 0.0}),
        ({"top_p": 0}, {"top_p": 1e-6}),
        ({"top_p": 1e-45}, {"top_p": 1e-6}),
        ({"top_k": 2**40}, {"top_k": 0}),
    ],
)
async def test_a_number_past_float32_means_what_it_is_near(
    start_gateway: StartGateway, asked: dict[str, Any], sampled: dict[str, Any]
) -> None:
    gateway, engine = await start_gateway(sampling=RESPECT)
    status, _ = await post(gateway.sessions.open("e"), gateway, {"messages": HI, **asked})
    assert status == 200
    sampling = engine.requests[-1].sampling
    assert sampling == replace(sampling, **sampled)


async def test_a_response_echoes_the_number_that_was_asked_for(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(sampling=RESPECT)
    raw = with_field(ENDPOINTS["responses"], "top_p", "0")
    _, answer = await sent(gateway, gateway.sessions.open("e"), "responses", raw)
    assert answer["top_p"] == 0


async def test_a_session_with_next_to_no_temperature_is_greedy(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway()
    policy = SamplingPolicy(temperature=1e-30)
    await gateway.sessions.open("e", sampling=policy).generate(HI, max_new_tokens=2)
    assert engine.requests[-1].sampling.is_greedy
