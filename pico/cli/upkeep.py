"""Commands that keep a lake healthy."""
