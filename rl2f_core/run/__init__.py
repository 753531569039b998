"""A run: its directory, events, journal of commits, and execution (`execute.execute`)."""
