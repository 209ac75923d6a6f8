"""Foreign material into a lake, and foreign configs as a front door to ours.

`facade` holds the methods of `pico.Lake`; `pico_train` imports runs of pico-train, `analysis`
answers the configs of pico-analyze. What is read is never executed: files of tensors go through
`tensorfile`, pickles of torch through the child process of `ptfile`.
"""
