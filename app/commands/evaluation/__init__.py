"""Commands that evaluate several levels, runs or seeds."""
