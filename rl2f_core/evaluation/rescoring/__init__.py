"""Run leak detectors again on the hints of a recorded run."""
