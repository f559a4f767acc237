"""Speed and memory, measured as a sceptic would: everything compared in one process, step by step in turns.

One verb a file: `decode`, `prefill`, `memory`, `perplexity`, `stream`. What they share: `settings` (every option and
its default, without torch), `subject` (the model, its twin for the reference, the text), `arms` (what is compared),
`gate` (nothing is timed before it is right), `timing` (turns, medians, paired ratios), `resident` (memory),
`floor` (what this machine could do at best), `machine` (what it was measured on), `report` and `table` (what is said).

Not here: engines other than PyTorch (`benchmarks/peers/` in the repository), and whether a policy is any good, which
is for `evaluate`.
"""
