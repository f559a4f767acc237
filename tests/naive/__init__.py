"""Plain loops that say what the fast paths must compute. Nothing here imports sinkpin.

`anatomy` calls a model's own sub-modules one at a time; `streaming`, `chunked` and `evidence` walk a text with them.
What a policy chooses is a file of its own: `random_policy` goes with `chunked`, the others, each of its policy's name,
with `evidence`, which gathers what they go by. `dense` holds oracles made from ordinary forwards.
"""
