"""The synthetic leak benchmark: scoring and timing of detectors."""
