"""leaks: see the modules in this package."""
