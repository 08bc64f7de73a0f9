"""Conversations to exact token ids, and token ids back to text."""
