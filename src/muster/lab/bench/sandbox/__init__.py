"""Sandboxes beside plain Docker and Podman."""
