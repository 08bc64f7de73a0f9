"""The objective as pure functions: advantages, packing, proximal logprobs, losses, presets.

Importing this package imports nothing heavy; `losses`, `proximal` and `batch` need torch.
"""
