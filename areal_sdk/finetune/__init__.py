"""Learning from data in place of episodes: supervised, from pairs, and from a teacher.

    files, run directories, a teacher's answers -> rows -> tokens -> Trainer.score / Trainer.learn

A fine-tuning run is a run: it writes a run directory, is resumed, and gives weights by its name. The
trainer is the one of `areal-sdk train`, and it knows only weighted sequences.
"""

from areal_sdk.finetune.api import (
    Taught,
    Teacher,
    ask_teacher,
    check,
    finetune,
    resume_finetuning,
)

__all__ = ["Taught", "Teacher", "ask_teacher", "check", "finetune", "resume_finetuning"]
