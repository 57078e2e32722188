"""Run a plan: gather the context, create the run folder, start and watch the ranks, and clean up."""
