"""Functions that return elements of a `View`."""
