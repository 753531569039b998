"""Chat templates and tokens: from messages to token ids."""
