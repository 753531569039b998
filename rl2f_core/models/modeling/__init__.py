"""Tensor helpers that sampler and learner share: loading, attention, log-probabilities, sequence packing."""
