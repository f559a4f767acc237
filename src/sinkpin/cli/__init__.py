"""The command `sinkpin`: one verb a file, and `main` to find the verb that was called.

`main` imports nothing but the verb it runs, and a verb imports torch and transformers only once its arguments
hold, so `--help`, `--version` and every typing mistake answer at once. `arms`, `text`, `tokens` and `load` turn what
a user types into arms, a text, token ids and a model. Not here: anything a library user would miss; each verb calls
what the package offers.
"""
