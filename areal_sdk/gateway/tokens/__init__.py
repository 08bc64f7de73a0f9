"""From a conversation to exact token ids, and back to text."""
