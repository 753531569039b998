"""Generation and scoring: the backend interface, transformers (`hf`), vLLM (`vllm`), and a fake for tests."""
