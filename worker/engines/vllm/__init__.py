"""The vllm engine: vLLM chooses the tokens."""
