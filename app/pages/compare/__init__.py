"""The page Compare: `page` is its layout and events."""
