"""Chat: a process that holds one model, its client, and the service that keeps conversations in the database."""
