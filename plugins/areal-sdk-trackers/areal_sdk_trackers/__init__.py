"""Trackers: observers that send what a run measures to wandb, TensorBoard, trackio or MLflow."""

from areal_sdk import hookimpl


@hookimpl
def register_observers(register):  # type: ignore[no-untyped-def]
    register("wandb", "areal_sdk_trackers.observers:Wandb")
    register("tensorboard", "areal_sdk_trackers.observers:TensorBoard")
    register("trackio", "areal_sdk_trackers.observers:Trackio")
    register("mlflow", "areal_sdk_trackers.observers:Mlflow")
