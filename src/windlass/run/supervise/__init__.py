"""Keeps a run alive: finds out why it ended, decides what to do about it, and starts it again.

`cause` and `decide` are pure: what was seen goes in, a verdict comes out. `look` gathers what is to be seen, `watch`
looks while the ranks run, `attempts` remembers, `loop` acts. Ranks know nothing of it.
"""
