"""Sums with a calculator tool: for trl."""

import random
import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def calculator(expression: str) -> str:
    """Evaluate a sum, such as 1+2.

    Args:
        expression: the sum
    """
    return str(sum(int(part) for part in expression.split("+")))


def similarity(completions, answer, **others):
    said = [completion[-1].get("content") or "" for completion in completions]
    return [
        sum(letter in right for letter in text) / (len(text) + 1)
        for text, right in zip(said, answer, strict=True)
    ]


generator = random.Random("train")
rows = []
for _ in range(100):
    a, b = generator.randrange(100), generator.randrange(100)
    messages = [{"role": "user", "content": f"What is {a}+{b}?"}]
    rows.append({"prompt": messages, "answer": str(a + b)})

trainer = GRPOTrainer(
    model=sys.argv[1],
    reward_funcs=similarity,
    tools=[calculator],
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir=sys.argv[2],
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=32,
        max_tool_calling_iterations=3,
        max_steps=1,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
    ),
)
trainer.train()
