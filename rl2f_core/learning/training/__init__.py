"""The training loop and the learner. See README.md."""
