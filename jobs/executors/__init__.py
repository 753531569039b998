"""Executors start workers: `base` is the contract, one module per location."""
