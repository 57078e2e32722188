"""The command line: one short file per command.

Each command returns a `Result`, and `main` prints it as text or JSON.
"""
