"""Labels by people and the detector report."""
