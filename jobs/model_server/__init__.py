"""Model process with the OpenAI protocol: the studio's for chats and served checkpoints, or `rl2f serve-model`."""
