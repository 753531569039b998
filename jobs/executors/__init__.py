"""executors: see `base` for the contract; one module for each place where a run can be worked on."""
