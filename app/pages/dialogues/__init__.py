"""The page Dialogues: `page` is its layout and events."""
