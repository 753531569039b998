"""The worker process of a run."""
