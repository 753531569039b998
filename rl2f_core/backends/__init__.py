"""backends: see the modules in this package."""
