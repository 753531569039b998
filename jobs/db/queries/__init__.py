"""Database queries, one module per subject; each function opens one short transaction."""
