"""The words of the scripted policies: each is a function of the prompt, for one kind of task.

How far a conversation is shows in the results that the prompt holds, so a policy says the same to a
client that began a branch as to one that went on.
"""

import json
import re
from collections.abc import Callable

Policy = Callable[[str], str]


def num_results(prompt: str) -> int:
    return len(set(re.findall(r"RESULT-\d", prompt)))


def calls_tools(shape: str) -> tuple[Policy, int]:
    """The policy of a template's shape, and how many calls it makes in five turns.

    On Qwen 3's shape it thinks, and its first two calls come at once.
    """
    return (calls_at_once, 4) if shape == "qwen3" else (calls_one_by_one, 3)


def calls_one_by_one(prompt: str) -> str:
    """Calls until there are two results, an answer; to the second question one call more."""
    done = num_results(prompt)
    demanded = prompt.endswith("<tool_call>\n")  # the call is begun already
    wanted = 3 if "And 9?" in prompt else 2
    text = f"The answer is {done}."
    if done < wanted:
        said = "Let me see.\n" if done < 2 and not demanded else ""
        call = {"name": "calculator", "arguments": {"expression": f"{done} + 1.0"}}
    elif demanded:  # smolagents ends with a call
        said, call = "", {"name": "final_answer", "arguments": {"answer": text}}
    else:
        return text
    begun = "" if demanded else "<tool_call>\n"
    return f"{said}{begun}{json.dumps(call)}\n</tool_call>"


def calls_at_once(prompt: str) -> str:
    """Two calls at once, one that is hard to quote, an answer; to the second question one more."""
    done = num_results(prompt)
    demanded = prompt.endswith("<tool_call>\n")  # the first call is begun already
    thought = "" if demanded else f"<think>\nStep {done}: use the tool.\n</think>\n\n"
    said, expressions = {
        0: ("Let me see.", ["1 + 1", "2 * 3"]),
        2: ("", ['"café" → <b>']),
        3: ("Once more.", ["9"]) if "And 9?" in prompt else ("", []),
    }.get(done, ("", []))
    calls = [
        {"name": "calculator", "arguments": {"expression": expression, "digits": 2.0}}
        for expression in expressions
    ]
    if not calls and not demanded:
        return f"{thought}The answer is **{done}** 🙂."
    if not calls:  # smolagents ends with a call
        answer = f"The answer is **{done}** 🙂."
        calls = [{"name": "final_answer", "arguments": {"answer": answer}}]
    written = [f"{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    lead = "" if demanded else f"{thought}{said}\n<tool_call>\n"
    return lead + "\n<tool_call>\n".join(written)


def writes_code(shape: str) -> tuple[Policy, int]:
    """Tools are called by Python in the text, two of them in the first."""

    def answer(prompt: str) -> str:
        done = num_results(prompt)
        thought = f"<think>\nStep {done}.\n</think>\n\n" if shape == "qwen3" else ""
        if done == 0:
            code = 'first = calculator("1 + 1")\nprint(first, calculator(expression="2 * 3"))'
        elif done == 2 or (done == 3 and "And 9?" in prompt):
            code = "print(calculator('\"café\" → <b>'))"
        else:
            code = f'final_answer("The answer is {done}.")'
        return f"{thought}Thoughts: let me see.\n<code>\n{code}\n</code>"

    return answer, 4


def fills_in(shape: str) -> tuple[Policy, int]:
    """A form is all that may be called: two fillings are refused, then one is right; so is the fourth."""

    def answer(prompt: str) -> str:
        done = num_results(prompt)
        wanted = 3 if "And 9?" in prompt else 2
        text = f"The answer is {done}." if done >= wanted else f'"{done}" → 1.0'
        assert prompt.endswith('"arguments": '), "the call is begun already"
        return json.dumps({"text": text}, ensure_ascii=False) + "}\n</tool_call>"

    return answer, 3


def fills_fields(shape: str) -> tuple[Policy, int]:
    """Tools are called by fields in the text, and so is the answer: the prompt names the first field."""

    def answer(prompt: str) -> str:
        first = re.findall(r"starting with the field `\[\[ ## (\w+) ## \]\]`", prompt)[-1]
        thought = f"<think>\n{first}.\n</think>\n\n" if shape == "qwen3" else ""
        done = num_results(prompt)
        wanted = 1 if "And 9?" in prompt else 2
        if first != "next_thought":  # the trajectory is over: what is asked for is the answer
            fields = {"reasoning": "All is known.", "answer": f"The answer is {done}."}
        elif done < wanted:
            call = json.dumps({"expression": '"café" → <b>', "digits": 2.0}, ensure_ascii=False)
            fields = {
                "next_thought": "Let me see.",
                "next_tool_name": "calculator",
                "next_tool_args": call,
            }
        else:
            fields = {
                "next_thought": "Done.",
                "next_tool_name": "finish",
                "next_tool_args": "{}",
            }
        written = "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in fields.items())
        return f"{thought}{written}\n\n[[ ## completed ## ]]"

    return answer, 3
