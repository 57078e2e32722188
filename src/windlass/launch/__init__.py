"""From a request to ranks that run: plan, render, run, submit, explain. Decides in values, acts at the edge."""
