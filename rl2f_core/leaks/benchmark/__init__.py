"""The synthetic leak benchmark: hint generators and scoring."""
