"""The local store of base models."""
