"""The processes of a sandbox: PID 1, shells, services, and what they say."""
