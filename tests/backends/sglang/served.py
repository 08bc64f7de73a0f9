"""Which of the trained families a test has seen SGLang sample; docs/models.md lists them."""

SERVED = ("gemma3_text", "llama", "mistral", "olmo2", "qwen2", "qwen3")
"""`model_type` of config.json."""
