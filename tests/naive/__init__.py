"""Plain loops that say what the fast paths must compute. Nothing here imports sinkpin.

`anatomy` calls a model's own sub-modules one at a time, `streaming` and `chunked` walk a text with them,
`random_policy` is the random policy's choice, `dense` holds oracles made from ordinary forwards.
"""
