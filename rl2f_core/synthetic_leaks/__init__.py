"""Generators of leaking hints and near-misses, for the synthetic benchmark and the teacher `leaky`."""
