"""Tokenization and normalization of answers and hints."""
