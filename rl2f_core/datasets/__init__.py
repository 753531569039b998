"""Stored datasets: written by `distill` stages, read by `sft` stages."""
