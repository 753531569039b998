"""The group `rl2f leaks`."""
