"""Teachers, which answer wrong attempts with hints."""
