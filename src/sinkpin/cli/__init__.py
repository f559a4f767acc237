"""The command `sinkpin`: one verb a file, and `main` to find the verb that was called.

`main` imports nothing but the verb it runs, and a verb imports torch and transformers only once its arguments
hold, so `--help`, `--version` and every typing mistake answer at once. `load` turns what a user types into a
model, a tokenizer and token ids. Not here: anything a library user would miss; each verb calls what the
package offers.
"""
