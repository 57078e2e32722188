"""Node-side sampling: the ranks' start-up hook with its recorder, and the samplers of the agent."""
