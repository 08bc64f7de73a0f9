"""The commands that learn from data: `sft`, `dpo`, `reward-model`, `distill`."""
