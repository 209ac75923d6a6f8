"""Models brought back to life from a lake, and what is measured on them."""
