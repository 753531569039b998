"""The page New run: `page` is its layout and events."""
