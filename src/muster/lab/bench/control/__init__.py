"""The control plane's own CPU time."""
