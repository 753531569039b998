"""evaluation: see the modules in this package."""
