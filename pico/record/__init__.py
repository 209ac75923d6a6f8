"""Writes what a training loop does into a lake, for any torch loop.

`recorder.Recorder` is the public door; `schedule` and `plan` read what shall be recorded when,
`hooks` takes it from the model, `writer` moves it to the lake in the background. The trainer is the
first client and has no private way in.
"""
