"""The errors sinkpin raises: one base, one leaf for each thing that can be wrong.

Every message is one line that names the numbers, the consequence and the remedy. All leaves are `ValueError`s, so
code that knows nothing of sinkpin still catches them. Broken invariants of sinkpin itself are `assert`s, not these.
"""


class SinkpinError(ValueError):
    """Base of everything sinkpin raises on purpose."""


class BudgetError(SinkpinError):
    """A budget that cannot be read, or cannot hold what must be in it."""


class PolicyError(SinkpinError):
    """An unknown policy, an unknown option, or options that contradict each other."""


class ModelError(SinkpinError):
    """A model that cannot be loaded, or cannot do what a cache or policy needs of it."""


class InputError(SinkpinError):
    """Text, token ids, masks or files that cannot be used as given."""


class CacheError(SinkpinError):
    """A cache used in a way that would make its contents wrong: closed, half-written, or with another model."""
