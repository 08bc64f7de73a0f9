import asyncio

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, Part
from task import API_KEY, BASE_URL, INSTRUCTIONS, QUESTIONS, STREAMS, calculate, check


def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


async def main() -> None:
    agent = LlmAgent(
        name="calculator_agent",
        model=LiteLlm(model="openai/policy", api_base=BASE_URL, api_key=API_KEY),
        instruction=INSTRUCTIONS,
        tools=[calculator],
    )
    runner = InMemoryRunner(agent, app_name="episode")
    session = await runner.session_service.create_session(app_name="episode", user_id="user")
    config = RunConfig(streaming_mode=StreamingMode.SSE if STREAMS else StreamingMode.NONE)
    answers = []
    for question in QUESTIONS:
        said = Content(role="user", parts=[Part(text=question)])
        async for event in runner.run_async(
            user_id="user", session_id=session.id, new_message=said, run_config=config
        ):
            if event.is_final_response() and event.content and not event.partial:
                texts = [part.text or "" for part in event.content.parts if not part.thought]
        answers.append("".join(texts))
    check(answers)


asyncio.run(main())
