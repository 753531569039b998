"""The model process of the chat: an OpenAI-compatible HTTP server on the loopback interface, and its client."""
