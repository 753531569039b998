"""Language models: files, tokens, generation, chat models. Nothing here knows tasks."""
