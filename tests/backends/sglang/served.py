"""The trained families that a test has seen SGLang sample; docs/models.md lists them."""

SERVED = (
    "gemma3_text",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "olmoe",
    "qwen2",
    "qwen3",
    "qwen3_moe",
)
"""`model_type` of config.json."""
