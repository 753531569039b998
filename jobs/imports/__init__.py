"""Import rollouts of other programs as read-only runs: one module per format."""
