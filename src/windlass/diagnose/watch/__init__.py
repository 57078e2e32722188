"""Monitoring of a running job: records of the ranks' steps, samples of the nodes, and findings from both.

The start-up hook of the ranks and the samplers run on the nodes (`node/sampler`). This package reads their output.
"""
