"""The model `areal-sdk/NAME` of Inspect: the session of an episode, an endpoint as OpenAI has it."""

from inspect_ai.model import ModelOutput, modelapi
from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI

_LIMITS = ("context_length_exceeded", "episode_limit_reached")
"""Codes of a refusal that ends the answers and not the episode: the scorers judge what there is."""


class SessionAPI(OpenAICompatibleAPI):
    def __init__(self, model_name, **given):
        super().__init__(model_name, service="areal-sdk", strict_tools=False, **given)

    def handle_bad_request(self, ex):
        if ex.code in _LIMITS:
            # Inspect's own providers give the text of the refusal as the answer, which a scorer might find right.
            return ModelOutput.from_content(self.model_name, "", stop_reason="model_length")
        return ex


@modelapi(name="areal-sdk")
def areal_sdk():
    return SessionAPI
