"""A stranger's route and backend, in one file that imports contracts alone."""

import json

from aiohttp import web

import areal_sdk
from areal_sdk.routes import (
    ApiError,
    Backend,
    BackendSettings,
    Call,
    RecordedCall,
    Route,
    TextChoice,
    TextReply,
    TextRequest,
)


async def rerank(call: Call) -> web.Response:
    body = json.loads(await call.body())
    if "documents" not in body:
        raise ApiError(400, "rerank needs documents.", param="documents")
    return web.json_response({"documents": sorted(body["documents"]), "by": call.path})


class Parrot(Backend):
    """Answers each chat with its last message."""

    def __init__(self, settings: BackendSettings) -> None:
        self.is_open = False

    async def start(self) -> None:
        self.is_open = True

    async def answer(self, call: RecordedCall) -> web.Response:
        assert self.is_open
        raw = await call.body()
        with call.recording(
            raw, read=lambda body: TextRequest((tuple(body["messages"]),))
        ) as record:
            said = {"role": "assistant", "content": json.loads(raw)["messages"][-1]["content"]}
            await record.keep(lambda: TextReply("", (TextChoice(said),)), size=len(raw))
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            return web.json_response({"id": record.reply_id, "choices": [choice]})


@areal_sdk.hookimpl
def register_routes(register):  # type: ignore[no-untyped-def]
    register("rerank", Route("POST", "rerank", rerank))


@areal_sdk.hookimpl
def register_backends(register):  # type: ignore[no-untyped-def]
    register("parrot", Parrot)
