"""Worker processes with limits for untrusted judging."""
