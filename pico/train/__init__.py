"""The trainer: a Lightning Fabric loop that is the first client of the public recorder."""
