"""Keeping a lake in order: rewriting, checking and clearing what its writers left.

`Lake` calls it, the command line through it. Everything here works on a snapshot and commits
through streams like any other writer, so that it is safe while others read and write; nothing here
needs torch.
"""
