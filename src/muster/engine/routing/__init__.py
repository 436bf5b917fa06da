"""The router's parts; all pure."""
