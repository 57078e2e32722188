"""Start-up as developers measure it: a push over links of a known rate, and a simulation of thousands of nodes."""
