"""OpenAI-compatible server of a base model and its checkpoints, with continuous batching (`rl2f serve-model`)."""
