"""The form of a new run, made from the configuration classes."""
