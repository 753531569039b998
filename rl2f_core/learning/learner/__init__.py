"""The model that is updated: losses, optimizer, adapters, memory."""
