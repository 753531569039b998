"""The page Runs: `page` is its layout and events."""
