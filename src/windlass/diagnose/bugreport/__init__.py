"""A bug report: the facts that another person needs to help, in one archive, without secrets."""
