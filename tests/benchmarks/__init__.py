"""Speed and memory against the plain ways, each a ratio measured in one run: `make bench`.

Rollout: the engine against a loop that calls `generate` on the whole dialogue at each turn.  Update: the learner
against TRL's `GRPOTrainer` on the same rows.  The sides take turns (A B A B); every side that trains lives in a process
of its own, so that its peak memory is its own.
"""
