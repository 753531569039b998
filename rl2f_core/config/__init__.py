"""Configuration of runs: frozen pydantic models; `run.RunConfig` is the configuration of a training run."""
