"""Text formats of the field: host lists, CPU lists, counts, text for a shell.

The modules here are pure. They import only the standard library and the errors.
"""
