"""The trainer in a process of its own: both ends of the pipe."""
