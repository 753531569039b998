"""Stateful environments: actions change a state."""
