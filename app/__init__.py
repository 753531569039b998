"""The skin: command line now, browser app on top of the same core."""
