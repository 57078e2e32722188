"""A bug report: what somebody else needs to know to help, in one archive, without secrets."""
