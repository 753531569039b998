"""kinds: see the modules in this package."""
