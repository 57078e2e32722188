"""Code that runs on compute nodes.

Standard library only, Python 3.9 or newer. The whole tree is sent to the nodes as one zip file, so nothing here
imports the rest of windlass. Every layer may import `windlass.node.sys`.
"""
