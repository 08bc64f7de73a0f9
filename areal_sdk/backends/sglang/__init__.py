"""SGLang servers as the inference engine. They live in an environment of their own; we talk HTTP."""
