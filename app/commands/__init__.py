"""One module for each group of commands; heavy imports stay inside the functions."""
