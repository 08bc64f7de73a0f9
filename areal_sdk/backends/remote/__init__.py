"""Inference servers over HTTP: a pool, its supervision, its weights, its faults."""
