"""Generated problems with one verified answer."""
