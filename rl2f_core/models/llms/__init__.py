"""llms: see the modules in this package."""
