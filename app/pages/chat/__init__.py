"""The page Chat: `page` is its layout and events."""
