"""Inference engines, one package each. Everything here implements `areal_sdk.engine`."""
