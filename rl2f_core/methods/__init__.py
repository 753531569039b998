"""methods: see the modules in this package."""
