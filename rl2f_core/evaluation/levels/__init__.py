"""Evaluation by level of difficulty and under perturbations."""
