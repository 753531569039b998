"""Studies: arms × seeds of training runs in one file, and the hypotheses that they test."""
