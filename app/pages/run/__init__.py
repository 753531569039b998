"""The page Run: `page` is its layout and events."""
