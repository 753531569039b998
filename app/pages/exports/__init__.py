"""The page Exports: `page` is its layout and events."""
