"""How the field writes things down: host lists, CPU lists, counts, text for a shell.

Pure; imports the standard library and the errors only.
"""
