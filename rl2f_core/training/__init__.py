"""training: see the modules in this package."""
