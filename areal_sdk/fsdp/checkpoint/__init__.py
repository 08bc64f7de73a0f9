"""Checkpoints of weights and optimiser (DCP: any number of ranks), and exports (transformers).

step-000020/
    .metadata, __0_0.distcp, ...     weights, moments, generators; sharded as the ranks were
    trainer.json                     counters, baselines, and what the caller added
    manifest.json                    size and checksum of each of these files
    export/                          the weights as a model, where somebody asked for them
"""

from areal_sdk.fsdp.checkpoint.export import export_checkpoint, export_model, whole_weights
from areal_sdk.fsdp.checkpoint.saving import Saver, load_checkpoint, roll_back, save_checkpoint
from areal_sdk.telemetry.checksums import MANIFEST_FILE, check_files

__all__ = [
    "MANIFEST_FILE",
    "Saver",
    "check_files",
    "export_checkpoint",
    "export_model",
    "load_checkpoint",
    "roll_back",
    "save_checkpoint",
    "whole_weights",
]
