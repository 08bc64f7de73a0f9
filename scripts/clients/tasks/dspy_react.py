import dspy
from task import API_KEY, BASE_URL, INSTRUCTIONS, STREAMS, ask_each, calculate


def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


class Answering(dspy.Signature):
    __doc__ = INSTRUCTIONS
    history: dspy.History = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


dspy.configure(lm=dspy.LM("openai/policy", api_base=BASE_URL, api_key=API_KEY, cache=False))
react = dspy.ReAct(Answering, tools=[calculator], max_iters=6)
said: list = []


def play(**given: object) -> dspy.Prediction:
    if not STREAMS:
        return react(**given)
    streamed = dspy.streamify(react, async_streaming=False)(**given)
    return next(chunk for chunk in streamed if isinstance(chunk, dspy.Prediction))


def ask(question: str) -> str:
    answer = play(question=question, history=dspy.History(messages=said)).answer
    said.append({"question": question, "answer": answer})
    return answer


ask_each(ask)
