"""rollout: see the modules in this package."""
