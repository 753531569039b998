"""Process groups of runs with several processes."""
