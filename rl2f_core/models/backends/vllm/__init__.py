"""Generation with vLLM: a local `vllm serve` process or a running server, both used over HTTP."""

from rl2f_core.models.backends.vllm.backend import VLLMBackend

__all__ = ["VLLMBackend"]
