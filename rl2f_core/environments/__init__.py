"""Environments: tasks, prompts and verifiers."""
