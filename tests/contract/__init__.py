"""The contract, clause by clause: one file a clause, one table (`cells`) that policies and families join.

A test's docstring says, after "Kills:", which wrong line of code it is there to catch.
"""
