"""The page Labels: `page` is its layout and events."""
