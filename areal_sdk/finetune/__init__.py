"""Learning from data in place of episodes: supervised, from pairs, and from a teacher.

    files, run directories, a teacher's answers -> rows -> tokens -> Trainer.score / Trainer.learn

A fine-tuning run is like any other run: it writes a run directory, can be resumed, and its name stands
for its weights. It uses the trainer of `areal-sdk train`, which gets only weighted sequences here.
"""

from areal_sdk.finetune.api import Taught, Teacher, ask_teacher, check, finetune, resume_finetuning

__all__ = ["Taught", "Teacher", "ask_teacher", "check", "finetune", "resume_finetuning"]
