"""The page Fork: `page` is its layout and events."""
