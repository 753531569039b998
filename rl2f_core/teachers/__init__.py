"""teachers: see the modules in this package."""
