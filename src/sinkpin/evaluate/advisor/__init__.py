"""The budget advisor: the fewest bytes whose loss can be promised to stay below a limit, and the evidence.

`workloads` says what is searched for which use, `settings` what a candidate is, `passages` how texts become the two parts,
one to choose on and one to certify on. `bound` is the bound that decides, `search` chooses, `certify` promises, `advise` does one
after the other; all of it takes the function that measures as an argument (`measure` has the one that runs a model) and
needs neither torch nor transformers without it. `advice` is the record, `promise` its file (`sinkpin.json`), `words` what
is printed.

Not here: from files and arguments to passages (`cli.plan`).
"""
